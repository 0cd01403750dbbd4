// Head values of multi-head latent attention from attended latents: y[h] = W_UV[h] @ z[h].
//
//   weight  W_UV[h] [value, latent], a batch of product.cuh for every head
//   z       [rows, heads, latent] bf16              y  [rows, heads, value] bf16
//   Config  product.cuh (batch = head, inner = latent, out = value)
//
// Row-invariant, as product.cuh says why. Test: tests/ops/test_mla_value.py
#pragma once
#include "ddtree/product.cuh"

namespace ddtree {

template <class Config>
DEVICE void mla_value(const bf16* weight, const bf16* z, const Rows* rows, bf16* y) {
    static_assert(Config::x_batch == Config::inner && Config::y_batch == Config::out, "heads side by side");
    product<Config>(weight, z, rows, y);
}

}  // namespace ddtree
