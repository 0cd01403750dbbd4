"""Faults in the product that every dense weight goes through (catches: tests/ops/test_linear.py)."""

MUTATIONS = [
    # columns of x past the end of a row are multiplied with the zeros of a padded weight: NaN, or a read past the buffer
    ("product.cuh", " < live && step * 32 < columns;", " < live;"),
    # rows past the live ones are read
    ("product.cuh", "return 8 * n + int(threadIdx.x % 32 / 4) < live && step", "return step"),
    # the weight's last block reads a tile that is not there
    ("product.cuh", "min(tile + m, last)", "(tile + m)"),
    # weights are used before they are known to have arrived
    ("product.cuh", "        mbar_wait(bars + 8 * slot, parity);\n", ""),
    # a slot takes new weights while a lane still reads the old ones
    ("product.cuh", "        __syncwarp();\n        if (elect_one()) ask(bite + Config::stages, slot);",
     "        if (elect_one()) ask(bite + Config::stages, slot);"),
    # a slot is filled with the bite that comes after the right one
    ("product.cuh", "ask(bite + Config::stages, slot);", "ask(min(bite + Config::stages + 1, P::kBites - 1), slot);"),
    # rows of x are used one bite before their copies are known to have arrived
    ("product.cuh", "cp_async_wait<Config::x_stages - 2>();", "cp_async_wait<Config::x_stages - 1>();"),
    # a warp reads what the others of its team have not copied yet
    ("product.cuh", "        else bar_sync(1 + team, 32 * Config::team);\n", ""),
    # x arrives where the team still reads
    ("product.cuh", "slot == 0 ? ahead : slot - 1", "slot"),
    # halves of a step are swapped on one side
    ("product.cuh", "{b[n].z, b[n].w}", "{b[n].x, b[n].y}"),
    # the second slice of a warp replaces the first
    ("product.cuh", "sum[m][n][i] = waiting[level][m][n][i] + sum[m][n][i];", "sum[m][n][i] = sum[m][n][i];"),
    # slices of a warp are added from left to right
    ("product.cuh", "(slice >> level & 1) == 0", "(slice & 1) == 0"),
    # the sums of fast warps overwrite rings that slow warps still read
    ("product.cuh", "reinterpret_cast<float*>(smem);\n    __syncthreads();", "reinterpret_cast<float*>(smem);"),
    # the tree adds a term twice and drops another
    ("product.cuh", "tree_sum<Count / 2>(term, at + Count / 2)", "tree_sum<Count / 2>(term, at + 1)"),
    # weight rows past the end of W are stored into the next row of y
    ("product.cuh", "            if (begin + row < out) store_rows(to + token * y_stride + row, own(token, row));",
     "            store_rows(to + token * y_stride + row, own(token, row));"),
    # results of rows that are not live are stored
    ("product.cuh", "min(live<Config::domain>(rows) - first, P::kTokens)", "P::kTokens"),
    # a group of rows writes over the first one
    ("product.cuh", "y + size_t(first) * y_stride", "y"),
    # terms are added from left to right: another sum for every number of warps and blocks
    ("product.cuh", "a = tree_sum<Count / 2>(term, at), b = tree_sum<Count / 2>(term, at + Count / 2)",
     "a = tree_sum<Count - 1>(term, at), b = term(at + Count - 1)"),
    # a block adds its own share first
    ("product.cuh", "return bitcast<float4>(v[b]); });", "return bitcast<float4>(v[(b + part) % SPLIT]); });"),
    # a block takes shares that have not been given yet
    ("product.cuh", "for (bool missing = true; missing;) {\n        missing = false;", "{\n        bool missing = false;"),
    # taken shares stay, and the next launch takes them again
    ("product.cuh", "        if (b != part) store16_relaxed(shares", "        if (false) store16_relaxed(shares"),
    # a block gives away what it takes itself, and nobody takes it
    ("product.cuh", "if (e / 8 % Config::split != part) give(", "give("),
    # the last runs of quads, fewer than blocks, are dropped
    ("product.cuh", "(tokens * quads + 8 * Config::split - 1) / (8 * Config::split) * 8", "tokens * quads / (8 * Config::split) * 8"),
]  # fmt: skip
