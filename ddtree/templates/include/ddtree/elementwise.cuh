// Ops on single elements: residual addition and the gated activation.
//
//   operands  [rows, width] bf16, width a multiple of 8
//   Config    width, threads, domain
//   tile      8 neighbouring elements a thread, rows back to back. grid (ceil(rows * width / 8 / threads))
//
// Row-invariant: an element depends on its own operands alone. Tests: tests/ops/test_add.py, tests/ops/test_swiglu.py
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/vec.cuh"

namespace ddtree {

template <class Config, class Function>
DEVICE void elementwise(const bf16* a, const bf16* b, const Rows* rows, bf16* y, Function f) {
    static_assert(Config::width % 8 == 0, "whole 16-byte vectors");
    pdl_launch_dependents();
    pdl_wait();
    const int v = blockIdx.x * Config::threads + threadIdx.x;
    if (v >= live<Config::domain>(rows) * (Config::width / 8)) return;
    store8(y, v, f(load8_coherent(a, v), load8_coherent(b, v)));
}

template <class Config>
DEVICE void add(const bf16* a, const bf16* b, const Rows* rows, bf16* y) {
    elementwise<Config>(a, b, rows, y, [](const Vec8& a, const Vec8& b) { return a + b; });
}

DEVICE float silu(float x) {   // x / (1 + exp(-x)); the exponential of a negative number cannot overflow
    const float e = expf(-fabsf(x));
    return x * ((x >= 0.f ? 1.f : e) / (1.f + e));
}

template <class Config>
DEVICE void swiglu(const bf16* gate, const bf16* up, const Rows* rows, bf16* y) {
    elementwise<Config>(gate, up, rows, y, [](Vec8 gate, const Vec8& up) {
#pragma unroll
        for (int i = 0; i < 8; ++i) gate[i] = silu(gate[i]) * up[i];
        return gate;
    });
}

}  // namespace ddtree
