// The cache row of multi-head latent attention, [rms_norm(latent) | rope(key)], made where it is kept.
//
//   x        [rows, latent + rope] bf16; layouts of pages and scratch: cache.cuh
//   Config   that of mla_latent.cuh; ring, positions of a windowed cache's ring, 0 for pages
//   tile     one row per block, as in mla_latent.cuh, whose bits it has
//
// Row-invariant: fixed lanes and order for every sum. Test: tests/ops/test_latent_write.py
#pragma once
#include "ddtree/cache.cuh"
#include "ddtree/mla_latent.cuh"

namespace ddtree {

// Tree rows go to scratch. grid (rows)
template <class Config>
DEVICE void latent_write_tree(const bf16* x, const bf16* weight, const Rows* rows, bf16* scratch, const float (&frequency)[Config::rope / 2]) {
    pdl_launch_dependents();
    const Vec8 gain = latent_gain<Config>(weight);
    pdl_wait();
    const size_t row = blockIdx.x;
    if (row >= rows->count) return;
    latent_row<Config>(x, gain, rows, row, scratch + tree_slot(rows, row) * (Config::latent + Config::rope), frequency);
}

// Committed rows go to pages. grid (rows)
template <class Config>
DEVICE void latent_write_pages(const bf16* x, const bf16* weight, const Rows* rows, bf16* pages, const float (&frequency)[Config::rope / 2]) {
    pdl_launch_dependents();
    const Vec8 gain = latent_gain<Config>(weight);
    pdl_wait();
    const size_t row = blockIdx.x;
    if (row >= rows->count || overwritten<Config::ring>(rows, row)) return;
    bf16* to = pages + committed_slot<Config::ring>(rows, row) * (Config::latent + Config::rope);
    latent_row<Config>(x, gain, rows, row, to, frequency);
}

}  // namespace ddtree
