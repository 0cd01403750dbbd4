// Barriers between warps, blocks and kernels, and reductions in a fixed order (a result never depends on timing).
#pragma once
#include "ddtree/prims/memory.cuh"
#include "ddtree/prims/types.cuh"

namespace ddtree {

// ---- named barriers 1..15 of a block (PTX: bar)
// `threads`, a multiple of 32, counts those that sync and those that arrive.
PRIM void bar_sync(int id, int threads AND_SITE) {
#ifdef DDTREE_EMULATED
    emu::named_barrier(id, threads, true, site);
#else
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
#endif
}

PRIM void bar_arrive(int id, int threads AND_SITE) {   // counts and goes on
#ifdef DDTREE_EMULATED
    emu::named_barrier(id, threads, false, site);
#else
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
#endif
}

// Barrier of all blocks of a grid that is resident at once (cooperative launch). words: two u32 in global memory,
// zeroed once before the first use of all; the count returns to zero, so grids of any size may follow each other.
PRIM void grid_sync(u32* words AND_SITE) {
    __syncthreads();
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
        const u32 blocks = gridDim.x * gridDim.y * gridDim.z;
        const u32 round = ld_acquire(words + 1 PASS_SITE);
        if (atom_add_acq_rel(words, 1 PASS_SITE) == blocks - 1) {
            st_release(words, 0 PASS_SITE);
            atom_add_acq_rel(words + 1, 1 PASS_SITE);
        } else {
            while (ld_acquire(words + 1 PASS_SITE) == round) {}
        }
    }
    __syncthreads();
}

// ---- one lane of a full warp, always the same one. Code under it is known to be one thread's, so that bulk copies there need no
// loop over lanes. PTX: elect.sync
PRIM bool elect_one() {
#ifdef DDTREE_EMULATED
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32 == 0;
#else
    u32 chosen = 0;
    asm volatile(
        "{\n"
        ".reg .b32 lane;\n"
        ".reg .pred me;\n"
        "elect.sync lane|me, 0xffffffff;\n"
        "@me mov.b32 %0, 1;\n"
        "}" : "+r"(chosen));
    return chosen != 0;
#endif
}

// The number of the calling warp in a block of one dimension, which the compiler then knows to be the same in all lanes.
PRIM int warp_index() {
#ifdef DDTREE_EMULATED
    return int(threadIdx.x) / 32;
#else
    return __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0);
#endif
}

// ---- programmatic dependent launch (PTX: griddepcontrol)
// First instruction of a kernel: the next kernel of the stream may start once every block of this one has started.
PRIM void pdl_launch_dependents() {
#ifndef DDTREE_EMULATED
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Before the first access to anything that an earlier kernel writes, or still reads and this one overwrites.
// Every kernel of a chain must execute it.
PRIM void pdl_wait() {
#ifndef DDTREE_EMULATED
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- reductions: a butterfly (distance 16, 8, 4, 2, 1), so every lane holds the same bits
PRIM float warp_sum(float x AND_SITE) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
#ifdef DDTREE_EMULATED
        x += emu::shuffle_xor(x, distance, site);
#else
        x += __shfl_xor_sync(0xffffffffu, x, distance);
#endif
    }
    return x;
}

PRIM float warp_max(float x AND_SITE) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
#ifdef DDTREE_EMULATED
        x = fmaxf(x, emu::shuffle_xor(x, distance, site));
#else
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, distance));
#endif
    }
    return x;
}

// Over THREADS = blockDim.x threads (a multiple of 32, at most 1024): warps by butterfly, then warp 0, 1, 2, ... in
// order. Every thread of the block calls it and gets the result.
template <int THREADS>
PRIM float block_sum(float x AND_SITE) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");
    x = warp_sum(x PASS_SITE);
    if constexpr (THREADS > 32) {
        SHARED_ARRAY(float, partial, THREADS / 32);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
        __syncthreads();
        x = partial[0];
#pragma unroll
        for (int warp = 1; warp < THREADS / 32; ++warp) x += partial[warp];
        __syncthreads();   // the array is free for the next call
    }
    return x;
}

template <int THREADS>
PRIM float block_max(float x AND_SITE) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps");
    x = warp_max(x PASS_SITE);
    if constexpr (THREADS > 32) {
        SHARED_ARRAY(float, partial, THREADS / 32);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
        __syncthreads();
        x = partial[0];
#pragma unroll
        for (int warp = 1; warp < THREADS / 32; ++warp) x = fmaxf(x, partial[warp]);
        __syncthreads();
    }
    return x;
}

}  // namespace ddtree
