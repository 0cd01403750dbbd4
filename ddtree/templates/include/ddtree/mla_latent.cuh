// The cache row of multi-head latent attention: [rms_norm(latent) | rope(key)].
//
//   x, y    [rows, latent + rope] bf16; latent and rope multiples of 8
//   weight  [latent] bf16
//   Config  latent, rope, layout, gain, eps, lanes (whole warps that hold the latent), threads of the block: lanes + 32 or more whole warps
//   tile    one row per block: the first warps normalise the latent, the next one turns the key, others add zeros
//
// Row-invariant: fixed lanes and order for every sum. Test: tests/ops/test_mla_latent.py
#pragma once
#include "ddtree/rms_norm.cuh"
#include "ddtree/rope.cuh"

namespace ddtree {

// The thread's part of the norm's weight; asked for before pdl_wait(), since nobody writes weights.
template <class Config>
DEVICE Vec8 latent_gain(const bf16* weight) {
    return threadIdx.x < Config::latent / 8 ? load8(weight, threadIdx.x) : Vec8::zero();
}

// Row `row` of x, made at `to`. All threads of the block call it.
template <class Config>
DEVICE void latent_row(const bf16* x, const Vec8& gain, const Rows* rows, size_t row, bf16* to, const float (&frequency)[Config::rope / 2]) {
    constexpr int vectors = Config::latent / 8, pairs = Config::rope / 2;
    static_assert(Config::latent % 8 == 0 && Config::rope % 8 == 0, "whole 16-byte vectors");
    static_assert(Config::lanes >= vectors && Config::threads >= Config::lanes + 32, "a vector per lane, and a warp for the key");
    const bf16* from = x + row * (Config::latent + Config::rope);
    const int v = threadIdx.x;

    const Vec8 mine[1] = {v < vectors ? load8_coherent(from, v) : Vec8::zero()};
    const float scale = inverse_rms<Config::latent, Config::threads>(mine, Config::eps);
    if (v < vectors) store8(to, v, normalised(mine[0], scale, gain));
    if (v >= Config::lanes && v < Config::lanes + 32) {
        const float position = float(rows->position[row]);
        for (int pair = v - Config::lanes; pair < pairs; pair += 32) {
            const Turn turn = rope_turn(position, frequency[pair], Config::gain);
            rotate_pair<Config::layout, Config::rope>(from + Config::latent, to + Config::latent, pair, turn);
        }
    }
}

template <class Config>
DEVICE void mla_latent(const bf16* x, const bf16* weight, const Rows* rows, bf16* y, const float (&frequency)[Config::rope / 2]) {
    pdl_launch_dependents();
    const Vec8 gain = latent_gain<Config>(weight);
    pdl_wait();
    const size_t row = blockIdx.x;
    if (row < rows->count) latent_row<Config>(x, gain, rows, row, y + row * (Config::latent + Config::rope), frequency);
}

}  // namespace ddtree
