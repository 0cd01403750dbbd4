// y[r] = W x[r]: the product of product.cuh with one batch, rows of x and y side by side.
//
//   weight  W [out, inner] in fragment order       x  [rows, inner] bf16
//   y       [rows, out] bf16, rounded once, or float       partial: see product()
//   Config  product.cuh                               first_block, out: of several linears in one launch, see product()
//
// Row-invariant, as product.cuh says why. Test: tests/ops/test_linear.py
#pragma once
#include "ddtree/product.cuh"

namespace ddtree {

template <class Config>
DEVICE void linear(const bf16* weight, const bf16* x, const Rows* rows, typename Config::Out* y, float* partial = nullptr,
                   int first_block = 0, int out = Config::out) {
    static_assert(Config::x_batch == 0 && Config::y_batch == 0, "one batch");
    product<Config>(weight, x, rows, y, partial, first_block, out, out);
}

}  // namespace ddtree
