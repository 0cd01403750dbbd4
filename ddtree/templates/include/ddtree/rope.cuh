// Rotary position embedding (graph/rope.py): pair i of a head turns by position * frequency[i] radians.
//
//   Layout   interleaved: pair i is elements (2i, 2i + 1); half: elements (i, i + dim/2)
//   angles   fp32(position) * fp32(frequency), as the reference computes them, for positions below 2**18
//
// Test: tests/ops/test_rotate.py
#pragma once
#include "ddtree/vec.cuh"

namespace ddtree {

enum class Layout { interleaved, half };

struct Turn {
    float cos, sin;
};

// cos and sin of 0 <= angle < 2**18 radians, within 1e-7. The library's sincosf needs local memory from 2**17 on, because it
// reduces angles of any size; here two fused steps suffice (Cody & Waite, 1980): with q < 2**18 quarter turns, q times the
// upper 24 bits of pi/2 is subtracted exactly. Only fused and rounded operations, so every machine gives the same bits.
DEVICE Turn turn_of(float angle) {
    const float quarters = rintf(angle * 0.636619772f);
    float x = fmaf(quarters, -1.57079637f, angle);
    x = fmaf(quarters, 4.37113883e-8f, x);   // fp32(pi/2) is this much too large
    const float square = x * x;
    // Taylor series on |x| < 0.81: the first omitted terms are below 4e-9.
    float sine = fmaf(square, 2.75573192e-6f, -1.98412698e-4f);
    sine = fmaf(square, sine, 8.33333333e-3f);
    sine = fmaf(square, sine, -1.66666667e-1f);
    sine = fmaf(x * square, sine, x);
    float cosine = fmaf(square, -2.75573192e-7f, 2.48015873e-5f);
    cosine = fmaf(square, cosine, -1.38888889e-3f);
    cosine = fmaf(square, cosine, 4.16666667e-2f);
    cosine = fmaf(square, cosine, -0.5f);
    cosine = fmaf(square, cosine, 1.f);
    const int quadrant = int(quarters) & 3;
    const float c = quadrant & 1 ? sine : cosine, s = quadrant & 1 ? cosine : sine;
    return {quadrant == 1 || quadrant == 2 ? -c : c, quadrant >= 2 ? -s : s};
}

// The rotation of a pair of that frequency (radians per position); gain is a factor on cos and sin.
DEVICE Turn rope_turn(float position, float frequency, float gain) {
    const Turn turn = turn_of(position * frequency);
    return {turn.cos * gain, turn.sin * gain};
}

// Rotates pair `pair` of a head of DIM elements. Products and sum are rounded one by one, as the reference rounds them.
template <Layout LAYOUT, int DIM>
DEVICE void rotate_pair(const bf16* x, bf16* y, int pair, Turn turn) {
    const int first = LAYOUT == Layout::interleaved ? 2 * pair : pair;
    const int second = LAYOUT == Layout::interleaved ? first + 1 : pair + DIM / 2;
    const float a = to_float(x[first]), b = to_float(x[second]);
    y[first] = to_bf16(__fsub_rn(__fmul_rn(a, turn.cos), __fmul_rn(b, turn.sin)));
    y[second] = to_bf16(__fadd_rn(__fmul_rn(b, turn.cos), __fmul_rn(a, turn.sin)));
}

}  // namespace ddtree
