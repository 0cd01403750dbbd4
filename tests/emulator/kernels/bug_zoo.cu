// One planted bug a kernel; test_bug_zoo.py says which message each gives. 128 threads, 1 KB of shared memory.
#include "ddtree/prims.cuh"
using namespace ddtree;

#define INTS DYN_SMEM(smem); int* s = reinterpret_cast<int*>(smem); (void)s; const int t = threadIdx.x

// ---- barriers and collectives
KERNEL(128) divergent_syncthreads(int* g) {
    INTS;
    if (t < 64) __syncthreads();
    else
        __syncthreads();
}
KERNEL(128) lane_never_arrives(int* g) {
    INTS;
    if (t != 7) g[t] = __shfl_xor_sync(~0u, t, 1);
}
KERNEL(128) barrier_against_collective(int* g) {
    INTS;
    if (t == 3) __syncthreads();
    else g[t] = __reduce_add_sync(~0u, 1);
}
KERNEL(128) divergent_collectives(int* g) {
    INTS;
    if (t & 1) g[t] = __shfl_sync(~0u, t, 0);
    else
        g[t] = __ballot_sync(~0u, t);
}
KERNEL(128) exited_lane_in_mask(int* g) {
    INTS;
    if (t % 32 == 5) return;
    g[t] = __any_sync(~0u, t);
}
KERNEL(128) caller_not_in_mask(int* g) {
    INTS;
    g[t] = __any_sync(0x7fffffffu, t);
}
KERNEL(128) shuffle_from_outside_the_mask(int* g) {
    INTS;
    g[t] = __shfl_sync(t % 32 < 16 ? 0x0000ffffu : 0xffff0000u, t, 20);
}
KERNEL(128) named_barrier_starves(int* g) {
    INTS;
    if (t < 32) bar_sync(1, 64);
}
KERNEL(128) named_barrier_counts_differ(int* g) {
    INTS;
    if (t < 32) bar_sync(1, 64);
    else if (t < 64) bar_sync(1, 128);
}
KERNEL(128) half_a_warp_at_a_named_barrier(int* g) {
    INTS;
    if (t < 48) bar_sync(1, 64);
}

// ---- memory
KERNEL(128) past_the_end(int* g) {
    INTS;
    g[t + 4] = t;
}
KERNEL(128) before_the_start(int* g) {
    INTS;
    g[t - 4] = t;
}
KERNEL(128) past_shared_memory(int* g) {
    INTS;
    g[t] = s[t + 256];
}
KERNEL(128) into_the_red_zone(int* g, int extra) {
    INTS;
    if (t == 0) s[extra] = 1;
}
KERNEL(128) misaligned_load16(int* g) {
    INTS;
    g[t] = load16(s + 1).x;
}
KERNEL(128) unwritten_shared_memory(int* g) {
    INTS;
    g[t] = s[t];
}
KERNEL(128) unwritten_output(int* g) {
    INTS;
    if (t != 77) g[t] = t;
}
KERNEL(128) foreign_shared_address(int* g) {
    INTS;
    g[t] = smem_u32(g);
}
KERNEL(128) division_by_zero(int* g, int zero) {
    INTS;
    g[t] = t / zero;
}
DEVICE int deeper(volatile int* g, int depth) {
    volatile int frame[1024];
    frame[depth & 1023] = depth;
    return depth ? deeper(g, depth - 1) + frame[depth & 1023] : g[0];
}
KERNEL(128) stack_overflow(int* g, int depth) { g[threadIdx.x] = deeper(g, depth); }

// ---- waiting for ever
KERNEL(128) flag_never_set(u32* g) {
    while (ld_acquire(g) == 0) {}
}
KERNEL(128) waits_for_a_later_block(u32* g) {
    if (blockIdx.x == 0) {
        while (ld_acquire(g) == 0) spin_pause();
    } else {
        st_release(g, 1);
    }
}
KERNEL(128) endless_loop(int* g) {
    for (volatile int i = 0; !i;) {}
}
KERNEL(128) phase_never_completes(int* g) {
    INTS;
    if (t == 0) mbar_init(smem_u32(smem), 2);
    __syncthreads();
    if (t == 0) mbar_arrive(smem_u32(smem));
    mbar_wait(smem_u32(smem), 0);
}

// ---- asynchronous copies
KERNEL(128) misaligned_copy(int* g) {
    INTS;
    cp_async16(smem_u32(smem) + 8, g);
    cp_async_wait<0>();
}
KERNEL(128) misaligned_source(int* g) {
    INTS;
    cp_async16(smem_u32(smem), g + 1);
    cp_async_wait<0>();
}
KERNEL(128) copy_out_of_bounds(int* g) {
    INTS;
    cp_async16(smem_u32(smem) + 1024, g);
    cp_async_wait<0>();
}
KERNEL(128) copy_never_waited_for(int* g) {
    INTS;
    if (t < 64) cp_async16(smem_u32(smem) + t * 16, g);
    cp_async_commit();
}
KERNEL(128) copy_read_too_early(const int* in, int* out) {   // waits for one group too few
    INTS;
    if (t < 32) cp_async16(smem_u32(smem) + t * 16, in + t * 4);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    out[t] = s[t];
    cp_async_wait<0>();
}
KERNEL(128) bulk_of_odd_size(int* g) {
    INTS;
    if (t == 0) {
        mbar_init(smem_u32(smem) + 512, 1);
        bulk_load(smem_u32(smem), g, 24, smem_u32(smem) + 512);
    }
}
KERNEL(128) bulk_never_waited_for(int* g) {
    INTS;
    if (t == 0) {
        mbar_init(smem_u32(smem) + 512, 1);
        mbar_arrive_expect_tx(smem_u32(smem) + 512, 64);
        bulk_load(smem_u32(smem), g, 64, smem_u32(smem) + 512);
    }
}
KERNEL(128) mbarrier_overwritten(int* g) {
    INTS;
    if (t == 0) mbar_init(smem_u32(smem), 1);
    __syncthreads();
    if (t == 64) smem[0] = t;
}
KERNEL(128) mbarrier_not_initialised(int* g) {
    INTS;
    mbar_arrive(smem_u32(smem));
}
KERNEL(128) too_many_arrivals(int* g) {
    INTS;
    const u32 bar = smem_u32(smem);
    if (t == 0) {
        mbar_init(bar, 1);
        mbar_arrive_expect_tx(bar, 16);
        mbar_arrive(bar);
    }
}
KERNEL(128) bulk_read_too_early(const int* in, int* out) {
    INTS;
    const u32 bar = smem_u32(smem) + 512;
    if (t == 0) {
        mbar_init(bar, 1);
        mbar_fence_init();
        mbar_arrive_expect_tx(bar, 512);
        bulk_load(smem_u32(smem), in, 512, bar);
    }
    __syncthreads();
    out[t] = s[t];
    mbar_wait(bar, 0);
}

// ---- found in check mode only
KERNEL(128) missing_syncthreads(int* g) {
    INTS;
    s[t] = t;
    g[t] = s[t ^ 33];
}
KERNEL(128) missing_syncwarp(int* g) {
    INTS;
    s[t] = t;
    g[t] = s[t ^ 1];
}
KERNEL(128) shared_buffer_reused_too_soon(int* g) {
    INTS;
    s[t] = t;
    __syncthreads();
    g[t] = s[127 - t];
    s[t] = 0;
}
KERNEL(128) shared_array_race(int* g) {
    SHARED_ARRAY(int, total, 1);
    total[0] = threadIdx.x;
    __syncthreads();
    g[threadIdx.x] = total[0];
}
KERNEL(128) copy_into_a_buffer_in_use(const int* in, int* out) {
    INTS;
    s[t] = t;
    __syncthreads();
    out[t] = s[127 - t];
    if (t < 32) cp_async16(smem_u32(smem) + t * 16, in + t * 4);
    cp_async_commit();
    cp_async_wait<0>();
}
KERNEL(128) arrive_is_not_wait(int* g) {   // warps 2, 3 read what they only arrived for
    INTS;
    s[t] = t;
    if (t < 64) bar_sync(1, 128);
    else bar_arrive(1, 128);
    g[t] = s[t ^ 64];
}
KERNEL(128) mbarrier_used_before_its_init_is_seen(int* g) {
    INTS;
    if (t == 127) mbar_init(smem_u32(smem), 1);
    else if (t == 126) mbar_wait(smem_u32(smem), 1);
}
KERNEL(128) blocks_write_the_same_word(int* g) { g[0] = int(threadIdx.x + blockIdx.x); }
KERNEL(128) global_read_without_barrier(int* g) {
    g[threadIdx.x] = threadIdx.x;
    if (threadIdx.x >= 64) g[threadIdx.x] = g[threadIdx.x - 64];
}
KERNEL(128) last_block_without_release(int* partial, u32* counter, int* out) {   // a relaxed counter orders nothing
    SHARED_ARRAY(u32, order, 1);
    partial[blockIdx.x * 128 + threadIdx.x] = int(threadIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) order[0] = atomicAdd(counter, 1u);
    __syncthreads();
    if (order[0] == gridDim.x - 1)
        for (int b = 0; b < int(gridDim.x); ++b) out[threadIdx.x] = partial[b * 128 + threadIdx.x];
}
KERNEL(128) release_before_the_barrier(int* partial, u32* counter, int* out) {   // barrier first, then release
    SHARED_ARRAY(u32, order, 1);
    partial[blockIdx.x * 128 + threadIdx.x] = int(threadIdx.x);
    if (threadIdx.x == 0) order[0] = atom_add_acq_rel(counter, 1);
    __syncthreads();
    if (order[0] == gridDim.x - 1)
        for (int b = 0; b < int(gridDim.x); ++b) out[threadIdx.x] = partial[b * 128 + threadIdx.x];
}
KERNEL(128) misaligned_plain_load(int* g) {
    INTS;
    g[t] = reinterpret_cast<int4*>(s + 1)->x;
}
KERNEL(128) local_array_overrun(int* g, int n) {
    int local[4];
    for (int i = 0; i < n; ++i) local[i] = i;
    g[threadIdx.x] = local[threadIdx.x & 3];
}
KERNEL(128) shared_array_overrun(int* g, int n) {
    SHARED_ARRAY(int, table, 8);
    if (threadIdx.x == 0)
        for (int i = 0; i < n; ++i) table[i] = i;
    g[threadIdx.x] = 0;
}
KERNEL(128) null_pointer(int* g, const int* nothing) { g[threadIdx.x] = nothing[threadIdx.x]; }
KERNEL(128) shift_by_the_width(int* g, int distance) { g[threadIdx.x] = 1 << distance; }
