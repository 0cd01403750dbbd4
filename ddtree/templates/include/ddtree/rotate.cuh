// Rotary position embedding of whole heads.
//
//   x, y    [rows, heads, dim] bf16
//   Config  heads, dim, layout, gain, columns (heads turned side by side), threads (at least columns * dim / 2)
//   tile    one row per block; a thread turns one pair of every columns-th head, so cos and sin are computed once
//
// Row-invariant: a pair depends on its own position alone. Test: tests/ops/test_rotate.py
#pragma once
#include "ddtree/rows.cuh"
#include "ddtree/rope.cuh"

namespace ddtree {

template <class Config>
DEVICE void rotate(const bf16* x, const Rows* rows, bf16* y, const float (&frequency)[Config::dim / 2]) {
    constexpr int pairs = Config::dim / 2;
    static_assert(Config::threads >= Config::columns * pairs, "a thread for every pair");
    pdl_launch_dependents();
    pdl_wait();
    const int row = blockIdx.x, pair = threadIdx.x % pairs;
    if (row >= rows->count || threadIdx.x >= Config::columns * pairs) return;
    const Turn turn = rope_turn(float(rows->position[row]), frequency[pair], Config::gain);
    for (int head = threadIdx.x / pairs; head < Config::heads; head += Config::columns) {
        const size_t at = (size_t(row) * Config::heads + head) * Config::dim;
        rotate_pair<Config::layout, Config::dim>(x + at, y + at, pair, turn);
    }
}

}  // namespace ddtree
