// What the wrappers of prims.cuh call instead of an instruction.
#pragma once
#include "thread.h"

namespace emu {

// ---- shared memory: one region a block; addresses are offsets into it
struct SharedSlot {                   // one SHARED_ARRAY of the program text
    unsigned launch = 0, offset = 0;  // the offset is given at the first use in a launch
};
unsigned char* dynamic_shared();
void* static_shared(SharedSlot&, size_t bytes);
unsigned to_shared(const void*, Site);

// ---- global memory
[[noreturn]] void misaligned(const void*, int bytes, const char* what, Site);
inline void check_aligned(const void* p, int bytes, const char* what, Site site) {
    if (uintptr_t(p) % bytes) misaligned(p, bytes, what, site);
}
void check_prefetch(const void*, unsigned bytes, Site);
uint4 load16_relaxed(const void*, Site);
void store16_relaxed(void*, uint4, Site);
unsigned load_acquire(const unsigned*, Site);
void store_release(unsigned*, unsigned, Site);
unsigned add_acquire_release(unsigned*, unsigned, Site);
void add_relaxed(unsigned*, unsigned);
bool is_global(const void*);  // inside an array argument of the launch
// Fibers never interrupt each other: a load and a store make an atomic update. Both are in the runtime, out of the
// sanitizer's sight, which would take them for plain accesses.
uint64_t atomic_load(const void*, int bytes);
void atomic_store(void*, uint64_t, int bytes);

// ---- asynchronous copies
void copy_async16(unsigned shared, const void*, bool valid, Site);
void copy_async_commit();
void copy_async_wait(int pending);
void mbarrier_init(unsigned shared, unsigned count, Site);
void mbarrier_arrive(unsigned shared, unsigned expected_bytes, Site);
void mbarrier_wait(unsigned shared, unsigned parity, Site);
void bulk_load(unsigned shared, const void*, unsigned bytes, unsigned barrier, Site);

// ---- tensor cores
void mma_16816(float* d, const unsigned* a, const unsigned* b, Site);
void ldmatrix(unsigned* r, int count, bool transposed, unsigned shared, Site);

}  // namespace emu
