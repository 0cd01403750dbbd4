// Shared and global memory: addresses, 16-byte accesses, flags between blocks and GPUs, cache hints.
#pragma once
#include "ddtree/prims/types.cuh"

// Dynamic shared memory of the block as `unsigned char* name`, 1024-byte aligned, size given at the launch.
// SHARED_ARRAY: a named array `type name[count]`, 16-byte aligned, for small scratch. Both are uninitialised.
#ifdef DDTREE_EMULATED
#define DYN_SMEM(name) unsigned char* const name = emu::dynamic_shared()
#define SHARED_ARRAY(type, name, count)                                                                                \
    static emu::SharedSlot name##_slot;                                                                                \
    type(&name)[count] = *reinterpret_cast<type(*)[count]>(emu::static_shared(name##_slot, sizeof(type) * (count)))
#else
#define DYN_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]
#define SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]
#endif

namespace ddtree {

// 32-bit address of a shared-memory location, as ldmatrix, cp.async and mbarriers want it.
PRIM u32 smem_u32(const void* p AND_SITE) {
#ifdef DDTREE_EMULATED
    return emu::to_shared(p, site);
#else
    return u32(__cvta_generic_to_shared(p));
#endif
}

// ---- 16-byte accesses (p must be 16-byte aligned)
// Any memory, cached normally. The compiler may use the read-only path for const __restrict__ pointers.
PRIM uint4 load16(const void* p AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::check_aligned(p, 16, "load16", site);
#endif
    return *static_cast<const uint4*>(p);
}

PRIM void store16(void* p, uint4 v AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::check_aligned(p, 16, "store16", site);
#endif
    *static_cast<uint4*>(p) = v;
}

// Read-only bytes that are used once (weights): past L1, whole 256-byte sectors into L2. Never for data that an earlier
// kernel of a programmatic-launch chain wrote. PTX: ld.global.nc, "level::cache_hint", "level::prefetch_size"
PRIM uint4 load16_stream(const void* p AND_SITE) {
#ifdef DDTREE_EMULATED
    return load16(p, site);
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
#endif
}

// Global data that a predecessor wrote: never the read-only path, never moved before pdl_wait(). PTX: ld
PRIM uint4 load16_coherent(const void* p AND_SITE) {
#ifdef DDTREE_EMULATED
    return load16(p, site);
#else
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
#endif
}

// Global data that another block may be writing right now: every 4-byte element is old or new, no order is implied (the
// data itself must tell). A spin loop may use it. PTX: ld.relaxed, st.relaxed (memory consistency model)
PRIM uint4 load16_relaxed(const void* p AND_SITE) {
#ifdef DDTREE_EMULATED
    return emu::load16_relaxed(p, site);
#else
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
#endif
}

PRIM void store16_relaxed(void* p, uint4 v AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::store16_relaxed(p, v, site);
#else
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}

// The same between GPUs of one host: system scope, p may be peer memory.
PRIM uint4 load16_relaxed_sys(const void* p AND_SITE) {
#ifdef DDTREE_EMULATED
    return emu::load16_relaxed(p, site);
#else
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
#endif
}

PRIM void store16_relaxed_sys(void* p, uint4 v AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::store16_relaxed(p, v, site);
#else
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}

// One bf16, or eight bytes: for data that is not sixteen bytes of one thread.
PRIM void store_relaxed(bf16* p, bf16 v AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::check_aligned(p, 2, "store_relaxed", site);
    emu::atomic_load(p, 2);   // tells the race checker what the access is
    emu::atomic_store(p, v.bits, 2);
#else
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" :: "l"(p), "h"(v.bits) : "memory");
#endif
}

PRIM void store8_relaxed(void* p, uint2 v AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::check_aligned(p, 8, "store8_relaxed", site);
    emu::atomic_load(p, 8);
    emu::atomic_store(p, u64(v.y) << 32 | v.x, 8);
#else
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" :: "l"(p), "r"(v.x), "r"(v.y) : "memory");
#endif
}

// ---- flags between blocks (PTX: ld.acquire, st.release, atom; memory consistency model, release and acquire patterns)
// What a thread (and, after a __syncthreads, its block) wrote before a release is visible after the matching acquire.
PRIM u32 ld_acquire(const u32* p AND_SITE) {
#ifdef DDTREE_EMULATED
    return emu::load_acquire(p, site);
#else
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#endif
}

PRIM void st_release(u32* p, u32 v AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::store_release(p, v, site);
#else
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
#endif
}

PRIM u32 atom_add_acq_rel(u32* p, u32 x AND_SITE) {   // returns the old value
#ifdef DDTREE_EMULATED
    return emu::add_acquire_release(p, x, site);
#else
    u32 old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(x) : "memory");
    return old;
#endif
}

PRIM void red_add(u32* p, u32 x) {   // relaxed: counts, orders nothing. PTX: red
#ifdef DDTREE_EMULATED
    emu::add_relaxed(p, x);
#else
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" :: "l"(p), "r"(x) : "memory");
#endif
}

// The same flags between GPUs of one host: system scope, p may be peer memory or mapped host memory.
PRIM u32 ld_acquire_sys(const u32* p AND_SITE) {
#ifdef DDTREE_EMULATED
    return emu::load_acquire(p, site);
#else
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#endif
}

PRIM void st_release_sys(u32* p, u32 v AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::store_release(p, v, site);
#else
    asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
#endif
}

PRIM void fence_gpu() { __threadfence(); }
PRIM void fence_system() { __threadfence_system(); }

PRIM void spin_pause(SITE) {   // inside a spin loop. PTX: nanosleep
#ifdef DDTREE_EMULATED
    emu::yield(site);
#else
    __nanosleep(32);
#endif
}

// ---- L2 hints: they change speed only (PTX: createpolicy, cp.async.bulk.prefetch)
PRIM u64 policy_evict_first() {
#ifdef DDTREE_EMULATED
    return 0;
#else
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
#endif
}

PRIM u64 policy_evict_last() {
#ifdef DDTREE_EMULATED
    return 0;
#else
    u64 policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
#endif
}

// Asks for `bytes` (a multiple of 16) at the 16-byte aligned global address p to be in L2 soon. One thread calls it.
PRIM void prefetch_l2(const void* p, u32 bytes AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::check_prefetch(p, bytes, site);
#else
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(p), "r"(bytes) : "memory");
#endif
}

}  // namespace ddtree
