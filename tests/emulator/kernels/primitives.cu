// One small kernel for each primitive that is more than an expression; cases.py has inputs and NumPy references.
#include "ddtree/vec.cuh"
using namespace ddtree;

KERNEL(24) indices(u32* out) {   // three-dimensional grid and block
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
        blockIdx.x | blockIdx.y << 4 | blockIdx.z << 8 | threadIdx.x << 12 | threadIdx.y << 16 | threadIdx.z << 20;
}

KERNEL(32) mma(const u32* a, const u32* b, const float* c, float* d) {   // fragments, lane by lane
    const int i = blockIdx.x * 32 + threadIdx.x;
    const u32 x[4] = {a[i * 4], a[i * 4 + 1], a[i * 4 + 2], a[i * 4 + 3]}, y[2] = {b[i * 2], b[i * 2 + 1]};
    float sum[4] = {c[i * 4], c[i * 4 + 1], c[i * 4 + 2], c[i * 4 + 3]};
    mma_bf16_16816(sum, x, y);
    for (int k = 0; k < 4; ++k) d[i * 4 + k] = sum[k];
}

KERNEL(32) ldmatrix(const u32* in, const u32* row, u32* out) {   // any 16-byte row for any lane
    DYN_SMEM(smem);
    const int t = threadIdx.x;
    for (int i = t; i < 1024; i += 32) reinterpret_cast<u32*>(smem)[i] = in[i];
    __syncthreads();
    const u32 address = smem_u32(smem) + row[t] * 16;
    u32 r1[1], r2[2], r4[4];
    ldmatrix_x1(r1, address);
    out[t] = r1[0];
    ldmatrix_x2(r2, address);
    for (int k = 0; k < 2; ++k) out[32 + k * 32 + t] = r2[k];
    ldmatrix_x4(r4, address);
    for (int k = 0; k < 4; ++k) out[96 + k * 32 + t] = r4[k];
    ldmatrix_x1_trans(r1, address);
    out[224 + t] = r1[0];
    ldmatrix_x2_trans(r2, address);
    for (int k = 0; k < 2; ++k) out[256 + k * 32 + t] = r2[k];
    ldmatrix_x4_trans(r4, address);
    for (int k = 0; k < 4; ++k) out[320 + k * 32 + t] = r4[k];
}

// Eight copies in seven groups; the fourth group is empty.
KERNEL(64) async_copies(const int4* in, const u32* valid, int4* out) {
    DYN_SMEM(smem);
    int4* s = reinterpret_cast<int4*>(smem);
    const u32 base = smem_u32(smem);
    const int t = threadIdx.x;
    for (int g = 0; g < 8; ++g) {
        if (g != 3) cp_async16(base + (g * 64 + t) * 16, in + g * 64 + (t ^ g), valid[g * 64 + t] != 0);
        else s[g * 64 + t] = make_int4(1, 2, 3, 4);
        if (g != 6) cp_async_commit();
    }
    cp_async_wait<5>();
    for (int g = 0; g < 2; ++g) out[g * 64 + t] = s[g * 64 + t];
    cp_async_wait<1>();
    for (int g = 2; g < 6; ++g) out[g * 64 + t] = s[g * 64 + t];
    cp_async_wait<0>();
    for (int g = 6; g < 8; ++g) out[g * 64 + t] = s[g * 64 + t];
}

KERNEL(96) block_votes(const int* in, int* out) {
    const int t = threadIdx.x, p = in[blockIdx.x * 96 + t];
    out += blockIdx.x * 288;
    out[t] = __syncthreads_count(p);
    out[96 + t] = __syncthreads_or(p) != 0;
    out[192 + t] = __syncthreads_and(p) != 0;
}

// Warps 0 and 1 produce, warps 2 and 3 consume; barrier 1 says full, barrier 2 says empty.
KERNEL(128) named_barriers(const int* in, int* out, int rounds) {
    DYN_SMEM(smem);
    int* s = reinterpret_cast<int*>(smem);
    const int t = threadIdx.x;
    for (int r = 0; r < rounds; ++r) {
        if (t < 64) {
            if (r) bar_sync(2, 128);
            s[t] = in[r * 64 + t];
            bar_arrive(1, 128);
        } else {
            bar_sync(1, 128);
            out[r * 64 + t - 64] = s[127 - t];
            bar_arrive(2, 128);
        }
    }
    if (t < 64) bar_sync(2, 128);
    s[128 + t] = in[t];
    bar_sync(3 + (t >> 6), 64);
    out[rounds * 64 + t] = s[128 + (t & 64) + 63 - (t & 63)];
}

// Lanes 0 and 1 fill two stages with two bulk copies a phase, warps 1 and 2 consume them in reverse.
KERNEL(96) bulk_pipeline(const int4* in, int4* out, int rounds) {
    DYN_SMEM(smem);
    const int t = threadIdx.x;
    const u32 base = smem_u32(smem), full = base + 2048, empty = full + 16;
    if (t == 0) {
        for (int i = 0; i < 2; ++i) {
            mbar_init(full + 8 * i, 2);
            mbar_init(empty + 8 * i, 64);
        }
        mbar_fence_init();
        mbar_wait(full, 1);   // the phase before the first counts as complete
    }
    __syncthreads();
    for (int r = 0; r < rounds; ++r) {
        const u32 stage = r & 1, parity = r >> 1 & 1;
        if (t < 2) {
            mbar_wait(empty + 8 * stage, parity ^ 1);
            if (t == 0) {
                mbar_arrive_expect_tx(full + 8 * stage, 1024);
                bulk_load(base + stage * 1024, in + r * 64, 256, full + 8 * stage);
                bulk_load(base + stage * 1024 + 256, in + r * 64 + 16, 768, full + 8 * stage, policy_evict_first());
            } else {
                mbar_arrive(full + 8 * stage);
            }
        } else if (t >= 32) {
            mbar_wait(full + 8 * stage, parity);
            out[r * 64 + t - 32] = reinterpret_cast<int4*>(smem)[stage * 64 + (95 - t)];
            mbar_arrive(empty + 8 * stage);
        }
    }
}

// Split sum: the last block to arrive adds the partial sums in block order.
KERNEL(64) last_arriver(const u32* in, u32* partial, u32* counter, u32* out) {
    SHARED_ARRAY(u32, ticket, 1);
    const int t = threadIdx.x;
    partial[blockIdx.x * 64 + t] = in[blockIdx.x * 64 + t] * (blockIdx.x + 1);
    __syncthreads();
    if (t == 0) ticket[0] = atom_add_acq_rel(counter, 1);
    __syncthreads();
    if (ticket[0] != gridDim.x - 1) return;
    u32 sum = 0;
    for (int b = 0; b < int(gridDim.x); ++b) sum = sum * 31 + partial[b * 64 + t];
    out[t] = sum;
}

// Block 0 tells block 1, which tells block 2 (cooperative).
KERNEL(64) publish(const u32* in, u32* data, u32* flags, u32* out) {
    const int t = threadIdx.x, me = blockIdx.x;
    if (me == 0) data[t] = in[t];
    else if (t == 0)
        while (ld_acquire(flags + me) == 0) spin_pause();
    __syncthreads();
    if (me == 2) out[t] = data[t] + data[(t + 1) % 64];
    else if (t == 0) st_release(flags + me + 1, 1);
}

KERNEL(64) grid_barrier(const u32* in, u32* scratch, u32* out, u32* words) {   // cooperative
    const int t = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    scratch[t] = in[t] * 3 + 1;
    grid_sync(words);
    const u32 x = scratch[(t + blockDim.x) % n];
    grid_sync(words);
    scratch[t] = x ^ in[t];
    grid_sync(words);
    out[t] = scratch[(t + 5 * blockDim.x + 1) % n];
}

// The data tells whether it is there: no word of it is all ones (cooperative).
KERNEL(64) relaxed_words(const uint4* in, uint4* mailbox, uint4* out) {
    const int t = threadIdx.x;
    if (blockIdx.x == 1) {
        store16_relaxed(mailbox + t, in[t]);
        return;
    }
    uint4 v = load16_relaxed(mailbox + t);
    while (max(max(v.x, v.y), max(v.z, v.w)) == 0xffffffffu) v = load16_relaxed(mailbox + t);
    store16(out + t, v);
}

KERNEL(128) contention(const u32* in, u32* out, float* sums, int n) {   // totals that do not depend on the order
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const u32 x = in[i];
        atomicAdd(&out[x & 15], 1u);
        atomicMax(&out[16], x);
        atomicMin(&out[17], x);
        atomicOr(&out[18], x & 0xff);
        atomicAnd(&out[19], x | 0xffff0000u);
        u32 old = atomicAdd(&out[20], 0u), seen;
        do {
            seen = old;
            old = atomicCAS(&out[20], seen, seen + x);
        } while (old != seen);
        atomicAdd(reinterpret_cast<u64*>(out + 22), u64(x));
        red_add(&out[24], x >> 8);
        atomicMax(reinterpret_cast<int*>(out) + 25, int(x));
        atomicAdd(sums, float(x & 255));
    }
}

KERNEL(128) shared_histogram(const u32* in, u32* out, int n) {
    SHARED_ARRAY(u32, bins, 16);
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += 128) atomicAdd(&bins[in[i] & 15], 1u);
    __syncthreads();
    if (threadIdx.x < 16) out[threadIdx.x] = bins[threadIdx.x];
}

KERNEL(32) neighbouring_bytes(u8* out) { out[threadIdx.x] = u8(threadIdx.x * 7); }

template <int THREADS>
DEVICE void reduce_rows(const float* in, float* out) {
    const float x = in[blockIdx.x * THREADS + threadIdx.x];
    float* row = out + blockIdx.x * THREADS * 4 + threadIdx.x;
    row[0] = warp_sum(x);
    row[THREADS] = warp_max(x);
    row[2 * THREADS] = block_sum<THREADS>(x);
    row[3 * THREADS] = block_max<THREADS>(x);
}
KERNEL(32) reductions32(const float* in, float* out) { reduce_rows<32>(in, out); }
KERNEL(96) reductions96(const float* in, float* out) { reduce_rows<96>(in, out); }
KERNEL(1024) reductions1024(const float* in, float* out) { reduce_rows<1024>(in, out); }

KERNEL(32) vectors(const bf16* a, const bf16* b, bf16* rounded, float* exact) {
    const int i = threadIdx.x;
    const Vec8 x = load8(a, i), y = load8_stream(b, i), z = load8_coherent(a, (i + 1) % 32);
    store8(rounded, i, fma(x, y, z) * 0.5f - round_bf16(x * y));
    store8(exact, i, fma(2.f, x, y) + Vec8::fill(dot(x, y, 1.f)));
}

struct Settings {
    float scale;
    short offset[3];
    u64 seed;
};
KERNEL(32) parameters(u64* out, Settings s, u8 a, short b, u64 c, float d, double e, const bf16* nothing, bool flag) {
    if (threadIdx.x) return;
    out[0] = bitcast<u32>(s.scale);
    out[1] = u64(s.offset[0] + 10 * s.offset[1] + 100 * s.offset[2]);
    out[2] = s.seed;
    out[3] = a;
    out[4] = u64(b);
    out[5] = c;
    out[6] = bitcast<u32>(d);
    out[7] = bitcast<u64>(e);
    out[8] = (nothing == nullptr) + 2 * flag;
}
