"""Faults in the product that every dense weight goes through (catches: tests/ops/test_linear.py)."""

MUTATIONS = [
    # columns of x past the end of a row are multiplied with the zeros of a padded weight: NaN, or a read past the buffer
    ("product.cuh", "8 * n + row < live && step * 32 < columns", "8 * n + row < live"),
    # rows past the live ones are read
    ("product.cuh", "8 * n + row < live && step * 32 < columns", "step * 32 < columns"),
    # the weight's last block reads a tile that is not there
    ("product.cuh", "half * 256, tile < tiles);", "half * 256, true);"),
    # a stage is used one step before its copies are known to have arrived
    ("product.cuh", "cp_async_wait<Config::stages - 1>();", "cp_async_wait<Config::stages>();"),
    # a stage is filled with the step that comes after the right one
    ("product.cuh", "int stage = 0, ahead = Config::stages;", "int stage = 0, ahead = Config::stages + 1;"),
    # the second slice of a warp replaces the first
    ("product.cuh", "slice == 0 ? acc[m][n][i] : sum[m][n][i] + acc[m][n][i]", "acc[m][n][i]"),
    # halves of a step are swapped on one side
    ("product.cuh", "i % 2 ? b[n].z : b[n].x", "i % 2 ? b[n].x : b[n].z"),
    # the sums of fast warps overwrite rings that slow warps still read
    ("product.cuh", "reinterpret_cast<float*>(smem);\n    __syncthreads();", "reinterpret_cast<float*>(smem);"),
    # the tree adds a term twice and drops another
    ("product.cuh", "tree_sum<Count / 2>(term, at + Count / 2)", "tree_sum<Count / 2>(term, at + 1)"),
    # weight rows past the end of W are stored into the next row of y
    ("product.cuh", "else if (tile * 16 + row < out)", "else"),
    # results of rows that are not live are stored
    ("product.cuh", "min(live<Config::domain>(rows) - first, P::kTokens)", "P::kTokens"),
    # the counter of a split is left as it is: the next launch finds no last block
    ("product.cuh", "if (threadIdx.x == 0) arrived[item] = 0;", ""),
    # the second block to arrive believes that it is the last
    ("product.cuh", "if (ticket[0] != Config::split - 1) return;", "if (ticket[0] != 1) return;"),
    # a group of rows writes over the first one
    ("product.cuh", "y + size_t(first) * y_stride", "y"),
    # terms are added from left to right: another sum for every number of warps and blocks
    ("product.cuh", "a = tree_sum<Count / 2>(term, at), b = tree_sum<Count / 2>(term, at + Count / 2)",
     "a = tree_sum<Count - 1>(term, at), b = term(at + Count - 1)"),
    # the last block to arrive adds its own share first
    ("product.cuh", "shares + (b * P::kTokens + token)", "shares + ((b + part) % Config::split * P::kTokens + token)"),
]  # fmt: skip
