// Atomic operations. They synchronise nothing (relaxed, as on the GPU); flags go through ld_acquire and its kin.
#pragma once
#include "hardware.h"
#include "math.h"

namespace emu {

template <class T, class F>
inline T atomic_update(T* p, F next) {
    const uint64_t bits = atomic_load(p, sizeof(T));
    T old;
    __builtin_memcpy(&old, &bits, sizeof old);
    const T updated = next(old);
    uint64_t updated_bits = 0;
    __builtin_memcpy(&updated_bits, &updated, sizeof updated);
    atomic_store(p, updated_bits, sizeof(T));
    return old;
}

inline float flush_subnormal(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.f, x) : x; }

}  // namespace emu

inline float atomicAdd(float* p, float v) {  // on global memory subnormals count as zero
    if (!emu::is_global(p)) return emu::atomic_update(p, [v](float a) { return a + v; });
    return emu::atomic_update(
        p, [v](float a) { return emu::flush_subnormal(emu::flush_subnormal(a) + emu::flush_subnormal(v)); });
}
#define EMU_ATOMICS(type)                                                    \
    inline type atomicAdd(type* p, type v) {                                 \
        return emu::atomic_update(p, [v](type a) { return (type)(a + v); }); \
    }                                                                        \
    inline type atomicMin(type* p, type v) {                                 \
        return emu::atomic_update(p, [v](type a) { return a < v ? a : v; }); \
    }                                                                        \
    inline type atomicMax(type* p, type v) {                                 \
        return emu::atomic_update(p, [v](type a) { return a > v ? a : v; }); \
    }                                                                        \
    inline type atomicExch(type* p, type v) {                                \
        return emu::atomic_update(p, [v](type) { return v; });               \
    }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)
#undef EMU_ATOMICS
inline float atomicExch(float* p, float v) {
    return emu::atomic_update(p, [v](float) { return v; });
}
inline int atomicSub(int* p, int v) {
    return emu::atomic_update(p, [v](int a) { return a - v; });
}
inline unsigned atomicSub(unsigned* p, unsigned v) {
    return emu::atomic_update(p, [v](unsigned a) { return a - v; });
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
    return emu::atomic_update(p, [limit](unsigned a) { return a >= limit ? 0 : a + 1; });
}
#define EMU_BITWISE(name, type, op)                                           \
    inline type name(type* p, type v) {                                       \
        return emu::atomic_update(p, [v](type a) { return (type)(a op v); }); \
    }
EMU_BITWISE(atomicAnd, int, &)
EMU_BITWISE(atomicAnd, unsigned, &)
EMU_BITWISE(atomicAnd, unsigned long long, &)
EMU_BITWISE(atomicOr, int, |)
EMU_BITWISE(atomicOr, unsigned, |)
EMU_BITWISE(atomicOr, unsigned long long, |)
EMU_BITWISE(atomicXor, int, ^)
EMU_BITWISE(atomicXor, unsigned, ^)
EMU_BITWISE(atomicXor, unsigned long long, ^)
#undef EMU_BITWISE

template <class T>  // a failure may be a spin loop: others run
inline T atomicCAS(T* p, T expected, T value, emu::Site site = emu::Site::here()) {
    const T old = emu::atomic_update(p, [expected, value](T a) { return a == expected ? value : a; });
    if (!(old == expected)) emu::yield(site);
    return old;
}

template <class T>
inline T __ldg(const T* p, emu::Site site = emu::Site::here()) {
    if (uintptr_t(p) % alignof(T))
        emu::fail(site, "__ldg of %zu bytes: address %p is misaligned", sizeof(T), (const void*)p);
    return *p;
}
#define __ldcg __ldg
#define __ldcs __ldg
