// Instantiates every wrapper of prims.cuh and vec.cuh once, for the NVRTC test.
#include "ddtree/vec.cuh"
using namespace ddtree;

KERNEL(128) registers(const u32* in, u32* out) {
    const u32 a = in[0], b = in[1];
    const bf16x2 x = bitcast<bf16x2>(a), y = bitcast<bf16x2>(b);
    bf16x2 weights[4];
    int4x8_to_bf16(a, weights);
    out[0] = bitcast<u32>(add2(x, y)) ^ bitcast<u32>(sub2(x, y));
    out[3] = bitcast<u32>(mul2(x, y)) ^ bitcast<u32>(fma2(x, y, weights[3]));
    out[1] = lop3<0xEA>(a, b, 7) ^ max_u16x2(a, b) ^ bitcast<u32>(dup_lo(a)) ^ bitcast<u32>(dup_hi(a));
    out[2] = bitcast<u32>(ex2(bf16_lo(a)) + bf16_hi(b) + to_float(to_bf16(1.5f)) + round_bf16(3.1f) + to_float2(x).y);
}

KERNEL(128) memory(const uint4* in, uint4* out, u32* words) {
    pdl_launch_dependents();
    prefetch_l2(in, 4096);
    pdl_wait();
    store16(out, load16(in));
    store16(out + 1, load16_stream(in));
    store16(out + 2, load16_coherent(in));
    store16_relaxed(out + 3, load16_relaxed(in));
    store16_relaxed_sys(out + 3, load16_relaxed_sys(in));
    graph_set_conditional(nanoseconds(), opaque(words[5]));
    store8_relaxed(out + 4, make_uint2(words[0], words[1]));
    if (elect_one()) store_relaxed(reinterpret_cast<bf16*>(out + 5) + warp_index(), to_bf16(1.f));
    st_release(words, ld_acquire(words + 1) + atom_add_acq_rel(words + 2, 1));
    st_release_sys(words, ld_acquire_sys(words + 1));
    red_add(words + 3, 1);
    fence_gpu();
    fence_system();
    while (ld_acquire(words) == 0) spin_pause();
    grid_sync(words + 4);
}

KERNEL(128) copies(const unsigned char* in, float* out) {
    DYN_SMEM(smem);
    const u32 base = smem_u32(smem), bar = base + 4096;
    if (threadIdx.x == 0) {
        mbar_init(bar, 1);
        mbar_fence_init();
    }
    __syncthreads();
    cp_async16(base + threadIdx.x * 16, in + threadIdx.x * 16);
    cp_async16(base + 2048 + threadIdx.x * 16, in, threadIdx.x < 64);
    cp_async_commit();
    cp_async_wait<0>();
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        mbar_arrive_expect_tx(bar, 2048);
        bulk_load(base, in, 1024, bar);
        bulk_load(base + 1024, in, 1024, bar, policy_evict_first() | policy_evict_last());
    }
    mbar_wait(bar, 0);
    if (threadIdx.x == 0) mbar_arrive(bar);
    out[threadIdx.x] = smem[threadIdx.x];
}

KERNEL(128, 2) matrix(const unsigned char* in, float* out) {
    DYN_SMEM(smem);
    smem[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    const u32 row = smem_u32(smem) + threadIdx.x % 32 * 16;
    u32 r1[1], r2[2], r4[4], s1[1], s2[2], s4[4];
    ldmatrix_x1(r1, row);
    ldmatrix_x2(r2, row);
    ldmatrix_x4(r4, row);
    ldmatrix_x1_trans(s1, row);
    ldmatrix_x2_trans(s2, row);
    ldmatrix_x4_trans(s4, row);
    r2[0] ^= r1[0] ^ s1[0];
    float d[4] = {};
    mma_bf16_16816(d, r4, r2);
    mma_bf16_16816(d, s4, s2);
    bar_sync(1, 128);
    bar_arrive(2, 128);
    out[threadIdx.x] = block_sum<128>(d[0]) + block_max<128>(d[1]) + block_sum<32>(d[2]) + warp_max(d[3]);
}

KERNEL(32) vectors(const bf16* a, const float* b, bf16* c, float* d) {
    const Vec8 x = load8(a, 0), y = load8(b, 1), z = load8_stream(a, 2), w = load8_coherent(a, 3);
    store8(c, 0, round_bf16(fma(x, y, z * w)) + Vec8::fill(dot(x, y)) - fma(2.f, x, Vec8::zero()) * 3.f);
    store8(d, 0, x);
}
