// Numbers as unsigned integers of the same order, so that "larger value first, then lower id" is one comparison.
//
//   order_bits(x)   fp32 -> u32: -inf < ... < -0 = +0 < ... < +inf; NaN is 0, below everything
//   order_bits(x)   fp64 -> u64: the same, but NaN counts as -inf
//   ranked(x, id)   value and id as one key: distinct ids have distinct keys, and no key is 0
//
// Maxima of keys are associative, so they do not depend on the order in which threads meet.
// Tests: tests/ops/test_top_k.py, tests/ops/test_sample.py
#pragma once
#include "ddtree/prims.cuh"

namespace ddtree {

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);

DEVICE u32 order_bits(float x) {
    if (x != x) return 0;
    const u32 bits = bitcast<u32>(x == 0.f ? 0.f : x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE u64 order_bits(double x) {
    constexpr u64 sign = 1ull << 63, minus_infinity = 0xfff0000000000000ull;
    if (x != x) return ~minus_infinity;
    const u64 bits = bitcast<u64>(x == 0. ? 0. : x);
    return bits & sign ? ~bits : bits | sign;
}

DEVICE u64 ranked(float x, int id) { return u64(order_bits(x)) << 32 | ~u32(id); }
DEVICE int id_of(u64 key) { return int(~u32(key)); }

DEVICE float value_of(u64 key) {   // of a key whose value was no NaN; -0 comes back as +0
    const u32 bits = u32(key >> 32);
    return bitcast<float>(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

DEVICE u64 warp_max(u64 x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

// The largest x of a block of THREADS threads, known to all of them.
template <int THREADS>
DEVICE u64 block_max(u64 x) {
    SHARED_ARRAY(u64, largest, THREADS / 32);
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = x;
    __syncthreads();
    x = largest[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / 32; ++warp) x = max(x, largest[warp]);
    __syncthreads();   // the array is free for the next call
    return x;
}

}  // namespace ddtree
