// The norm of the query's latent and the cache row of multi-head latent attention, side by side in one launch.
//
//   x, y    [rows, width] bf16: y = rms_norm(x) * weight, as rms_norm.cuh makes it
//   latent  [rows, latent + rope] bf16; the cache row and its place are those of latent_write.cuh
//   Config  that of latent_write.cuh, and Norm, that of rms_norm.cuh; Norm::threads >= threads
//   tile    one row per block; blocks (row, 0) normalise x, blocks (row, 1) make the cache row
//
// Row-invariant, and the bits of the two kernels: fixed lanes and order for every sum. Test: tests/ops/test_mla_norms.py
#pragma once
#include "ddtree/latent_write.cuh"

namespace ddtree {

template <class Config, bool TREE>
DEVICE void mla_norms(const bf16* x, const bf16* weight, const bf16* latent, const bf16* latent_weight, const Rows* rows, bf16* y,
                      bf16* cache, const float (&frequency)[Config::rope / 2]) {
    if (blockIdx.y == 0) rms_norm<typename Config::Norm>(x, weight, rows, y);
    else if constexpr (TREE) latent_write_tree<Config>(latent, latent_weight, rows, cache, frequency);
    else latent_write_pages<Config>(latent, latent_weight, rows, cache, frequency);
}

}  // namespace ddtree
