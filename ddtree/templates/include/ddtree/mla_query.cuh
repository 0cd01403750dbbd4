// Absorbed queries of multi-head latent attention: y[h] = [q_nope[h] @ W_UK[h] | rope(q_rope[h])].
//
//   weight  W_UK[h] transposed, [latent, nope], a batch of product.cuh for every head
//   q       [rows, heads, nope + rope] bf16         y  [rows, heads, latent + rope] bf16
//   Config  product.cuh (batch = head, inner = nope, out = latent); rope, layout, gain
//   tile    as product.cuh; the blocks of a head and group of rows share its rotations among them
//
// Row-invariant: the product is, and a rotation depends on its row's position alone. Test: tests/ops/test_mla_query.py
#pragma once
#include "ddtree/product.cuh"
#include "ddtree/rope.cuh"

namespace ddtree {

template <class Config>
DEVICE void mla_query(const bf16* weight, const bf16* q, const Rows* rows, bf16* y,
                      const float (&frequency)[Config::rope / 2]) {
    static_assert(Config::domain == Domain::rows, "positions belong to rows");
    constexpr int pairs = Config::rope / 2;
    product<Config>(weight, q, rows, y);   // waits for the kernel that makes q

    const int first = blockIdx.x * Plan<Config>::kTokens, head = blockIdx.z;
    const int tokens = min(live<Config::domain>(rows) - first, Plan<Config>::kTokens);
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < tokens * pairs; i += gridDim.y * blockDim.x) {
        const int row = first + i / pairs, pair = i % pairs;
        const bf16* from = q + size_t(row) * Config::x_stride + head * Config::x_batch + Config::inner;
        bf16* to = y + size_t(row) * Config::y_stride + head * Config::y_batch + Config::out;
        const Turn turn = rope_turn(float(rows->position[row]), frequency[pair], Config::gain);
        rotate_pair<Config::layout, Config::rope>(from, to, pair, turn);
    }
}

}  // namespace ddtree
