// Root-mean-square normalisation of the last axis, alone and of the sum of a residual addition.
//
//   x, y    [rows, heads, width] bf16; width a multiple of 8; heads = 1 for plain rows
//   a, b    [rows, width] bf16, terms of the sum [rows, width] bf16, which is rounded and written before it is normalised
//   weight  [width] bf16
//   Config  width, heads, eps, lanes (threads of one vector: a power of two up to 32, or whole warps), threads, domain
//   tile    threads / lanes vectors per block. A vector stays in registers between its two passes, so it is read once.
//
// Row-invariant: a vector is summed by the same lanes in the same order, whatever the grid.
// Tests: tests/ops/test_rms_norm.py, tests/ops/test_add_rms_norm.py
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/vec.cuh"

namespace ddtree {

// Sum over LANES neighbouring threads; every thread of the block calls it and gets the sum of its own group.
template <int LANES>
DEVICE float group_sum(float x) {
    if constexpr (LANES >= 32) return block_sum<LANES>(x);
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

// 1 / sqrt(mean(x**2) + eps) of a vector spread over LANES threads, Vec8 i of thread t being number i * LANES + t.
template <int WIDTH, int LANES, int COUNT>
DEVICE float inverse_rms(const Vec8 (&x)[COUNT], float eps) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum = dot(x[i], x[i], sum);
    return rsqrtf(group_sum<LANES>(sum) / WIDTH + eps);
}

// Rounded before the weight is applied and once more after it: transformers does, and near-tied experts depend on it.
DEVICE Vec8 normalised(const Vec8& x, float scale, const Vec8& weight) { return round_bf16(x * scale) * weight; }

// y from the vectors that read(v) gives, v counting 8 elements each from the first row's start; read is called once for each.
template <class Config, class Read>
DEVICE void normalise(Read read, const bf16* weight, const Rows* rows, bf16* y) {
    constexpr int vectors = Config::width / 8, count = (vectors + Config::lanes - 1) / Config::lanes;
    static_assert(Config::width % 8 == 0 && Config::threads % Config::lanes == 0, "whole 16-byte vectors and groups");
    static_assert(Config::lanes < 32 || Config::lanes == Config::threads, "a group of warps is the whole block");
    pdl_launch_dependents();
    const size_t group = size_t(blockIdx.x) * (Config::threads / Config::lanes) + threadIdx.x / Config::lanes;
    const int lane = threadIdx.x % Config::lanes;
    uint4 gain[count];   // asked for before the wait: nobody writes weights
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const int v = i * Config::lanes + lane;
        gain[i] = v < vectors ? load16(weight + v * 8) : make_uint4(0, 0, 0, 0);
    }
    pdl_wait();
    const size_t groups = size_t(live<Config::domain>(rows)) * Config::heads;
    // Lanes of a group that does not exist stay, because the sum of a warp needs all of them.
    const bool exists = group < groups;
    const int first = int(group) * vectors;

    Vec8 row[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const int v = i * Config::lanes + lane;
        row[i] = exists && v < vectors ? read(first + v) : Vec8::zero();
    }
    const float scale = inverse_rms<Config::width, Config::lanes>(row, Config::eps);
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const int v = i * Config::lanes + lane;
        if (exists && v < vectors) store8(y, first + v, normalised(row[i], scale, unpack8(gain[i])));
    }
}

template <class Config>
DEVICE void rms_norm(const bf16* x, const bf16* weight, const Rows* rows, bf16* y) {
    normalise<Config>([&](int v) { return load8_coherent(x, v); }, weight, rows, y);
}

template <class Config>
DEVICE void add_rms_norm(const bf16* a, const bf16* b, const bf16* weight, const Rows* rows, bf16* sum, bf16* y) {
    const auto add = [&](int v) {
        const Vec8 total = round_bf16(load8_coherent(a, v) + load8_coherent(b, v));
        store8(sum, v, total);
        return total;
    };
    normalise<Config>(add, weight, rows, y);
}

}  // namespace ddtree
