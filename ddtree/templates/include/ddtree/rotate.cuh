// Rotary position embedding of whole heads.
//
//   x, y    [rows, heads, dim] bf16
//   Config  heads, dim, layout, gain, threads
//   tile    one row per block; a thread turns one pair of every threads/(dim/2)-th head, so cos and sin are computed once
//
// Row-invariant: a pair depends on its own position alone. Test: tests/ops/test_rotate.py
#pragma once
#include "ddtree/rows.cuh"
#include "ddtree/rope.cuh"

namespace ddtree {

template <class Config>
DEVICE void rotate(const bf16* x, const Rows* rows, bf16* y, const float (&frequency)[Config::dim / 2]) {
    constexpr int pairs = Config::dim / 2;
    static_assert(Config::threads % pairs == 0 || Config::threads < pairs, "whole heads");
    pdl_launch_dependents();
    pdl_wait();
    const int row = blockIdx.x;
    if (row >= rows->count) return;
    const float position = float(rows->position[row]);
    for (int at = threadIdx.x; at < pairs * Config::heads; at += Config::threads) {
        const int pair = at % pairs;
        const size_t head = (size_t(row) * Config::heads + at / pairs) * Config::dim;
        rotate_pair<Config::layout, Config::dim>(x + head, y + head, pair, rope_turn(position, frequency[pair], Config::gain));
    }
}

}  // namespace ddtree
