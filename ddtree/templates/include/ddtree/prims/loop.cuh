// What a kernel says to the CUDA graph that it is part of, and the clock that all kernels share.
#pragma once
#include "ddtree/prims/types.cuh"

#ifndef DDTREE_EMULATED
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);   // the driver links it at load
#endif

namespace ddtree {

// The value of a conditional node (WHILE: another iteration, SWITCH: which body); 0 stands for no node. One thread of the
// graph calls it for a node. Emulated, a handle is the address of a u32 that takes the value.
PRIM void graph_set_conditional(u64 handle, u32 value) {
    if (handle == 0) return;
#ifdef DDTREE_EMULATED
    *reinterpret_cast<u32*>(handle) = value;
#else
    cudaGraphSetConditional(handle, value);
#endif
}

// Nanoseconds since a fixed moment, equal on all multiprocessors. PTX: %globaltimer. Emulated, time stands still.
PRIM u64 nanoseconds() {
#ifdef DDTREE_EMULATED
    return 1;
#else
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
#endif
}

}  // namespace ddtree
