// Asynchronous copies global -> shared. Shared addresses are smem_u32 values.
#pragma once
#include "ddtree/prims/types.cuh"

namespace ddtree {

// ---- 16 bytes a thread (PTX: cp.async, cp.async.commit_group, cp.async.wait_group)
// valid == false writes sixteen zeros and reads nothing. Past L1 (.cg). Visible to this thread after cp_async_wait, to
// the block after a barrier behind it.
PRIM void cp_async16(u32 smem, const void* p, bool valid = true AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::copy_async16(smem, p, valid, site);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(smem), "l"(p), "r"(valid ? 16 : 0) : "memory");
#endif
}

PRIM void cp_async_commit() {
#ifdef DDTREE_EMULATED
    emu::copy_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>   // returns when at most PENDING of this thread's groups are still in flight
PRIM void cp_async_wait() {
#ifdef DDTREE_EMULATED
    emu::copy_async_wait(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#endif
}

// ---- mbarrier: 8 bytes of shared memory, 8-byte aligned (PTX: parallel synchronization, mbarrier)
// A phase completes when `count` arrivals and all announced bytes are there. mbar_wait(bar, parity) returns when the
// phase of that parity has completed; the phase before the first has parity 1.
PRIM void mbar_init(u32 bar, u32 count AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::mbarrier_init(bar, count, site);
#else
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
#endif
}

// After mbar_init, by the thread that initialised, before the barrier that tells the others: makes the mbarrier visible
// to bulk copies. PTX: fence.proxy.async
PRIM void mbar_fence_init() {
#ifndef DDTREE_EMULATED
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

PRIM void mbar_arrive(u32 bar AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::mbarrier_arrive(bar, 0, site);
#else
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
#endif
}

// One arrival; the phase also waits for `bytes` of bulk copies.
PRIM void mbar_arrive_expect_tx(u32 bar, u32 bytes AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::mbarrier_arrive(bar, bytes, site);
#else
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
#endif
}

PRIM void mbar_wait(u32 bar, u32 parity AND_SITE) {   // PTX: mbarrier.try_wait.parity
#ifdef DDTREE_EMULATED
    emu::mbarrier_wait(bar, parity, site);
#else
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT_%=;\n"
        "}" :: "r"(bar), "r"(parity) : "memory");
#endif
}

// ---- bulk copy by one thread (PTX: cp.async.bulk)
// smem, p and bytes are multiples of 16; completion counts `bytes` on bar. The shared::cta form, because
// shared::cluster becomes a system call that reserves gigabytes on sm_120.
PRIM void bulk_load(u32 smem, const void* p, u32 bytes, u32 bar AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::bulk_load(smem, p, bytes, bar, site);
#else
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(smem), "l"(p), "r"(bytes), "r"(bar) : "memory");
#endif
}

PRIM void bulk_load(u32 smem, const void* p, u32 bytes, u32 bar, u64 policy AND_SITE) {   // with an L2 policy
#ifdef DDTREE_EMULATED
    (void)policy;
    emu::bulk_load(smem, p, bytes, bar, site);
#else
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 :: "r"(smem), "l"(p), "r"(bytes), "r"(bar), "l"(policy) : "memory");
#endif
}

// Orders this thread's plain shared-memory accesses before later bulk copies into the same bytes.
// PTX: fence.proxy.async
PRIM void fence_async_proxy() {
#ifndef DDTREE_EMULATED
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace ddtree
