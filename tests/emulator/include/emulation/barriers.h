// Barriers of a block.
#pragma once
#include "thread.h"

namespace emu {

struct Votes {
    int count;  // threads whose predicate holds
    bool any, all;
};
Votes block_barrier(int predicate, Site);                  // __syncthreads: counts threads, exited ones do not count
void named_barrier(int id, int threads, bool wait, Site);  // bar.sync / bar.arrive: a warp arrives as a unit

}  // namespace emu

inline void __syncthreads(emu::Site site = emu::Site::here()) { emu::block_barrier(0, site); }
inline int __syncthreads_count(int p, emu::Site site = emu::Site::here()) { return emu::block_barrier(p, site).count; }
inline int __syncthreads_or(int p, emu::Site site = emu::Site::here()) { return emu::block_barrier(p, site).any; }
inline int __syncthreads_and(int p, emu::Site site = emu::Site::here()) { return emu::block_barrier(p, site).all; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
