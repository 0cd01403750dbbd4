// The callbacks of a check build. Kernels are compiled with -fsanitize=thread,alignment,bounds,shift-exponent but
// linked with neither sanitizer's runtime: these functions take its place.
#include "machine.h"

#include <cstring>

using emu::Access;
using emu::check_access;

extern "C" {

#define EMU_ACCESS(name, bytes, kind) \
    void __tsan_##name(void* p) { check_access(p, bytes, Access::kind, __builtin_return_address(0)); }
#define EMU_ACCESSES(bytes) EMU_ACCESS(read##bytes, bytes, read) EMU_ACCESS(write##bytes, bytes, write)
#define EMU_UNALIGNED(bytes) \
    EMU_ACCESS(unaligned_read##bytes, bytes, read) EMU_ACCESS(unaligned_write##bytes, bytes, write)
EMU_ACCESSES(1)
EMU_ACCESSES(2) EMU_ACCESSES(4) EMU_ACCESSES(8) EMU_ACCESSES(16) EMU_UNALIGNED(2) EMU_UNALIGNED(4) EMU_UNALIGNED(8)
    EMU_UNALIGNED(16) void __tsan_read_range(void* p, size_t n) {
    check_access(p, n, Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t n) { check_access(p, n, Access::write, __builtin_return_address(0)); }

void* __tsan_memcpy(void* to, const void* from, size_t n) {
    check_access(to, n, Access::write, __builtin_return_address(0));
    check_access(from, n, Access::read, __builtin_return_address(0));
    return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
    check_access(to, n, Access::write, __builtin_return_address(0));
    check_access(from, n, Access::read, __builtin_return_address(0));
    return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
    check_access(to, n, Access::write, __builtin_return_address(0));
    return memset(to, value, n);
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_atomic_thread_fence(int) {}

struct SourceLocation {
    const char* file;
    uint32_t line, column;
};
struct TypeMismatch {
    SourceLocation at;
    const void* type;
    unsigned char log_alignment;
};

void __ubsan_handle_type_mismatch_v1_abort(const TypeMismatch* m, uintptr_t p) {
    emu::fail_at({m->at.file, int(m->at.line)}, emu::format("access to %p, which is not %u-byte aligned",
                                                            reinterpret_cast<void*>(p), 1u << m->log_alignment));
}
void __ubsan_handle_out_of_bounds_abort(const SourceLocation* at, uintptr_t index) {
    emu::fail_at({at->file, int(at->line)}, emu::format("array index %ld out of bounds", long(index)));
}
void __ubsan_handle_shift_out_of_bounds_abort(const SourceLocation* at, uintptr_t, uintptr_t distance) {
    emu::fail_at({at->file, int(at->line)}, emu::format("shift by %ld is outside the operand's width", long(distance)));
}

}  // extern "C"
