"""Faults in the grouping of rows, the weight streams, the products and the combination of experts."""

MUTATIONS = [
    ("expert_mlp.cuh", "min(count[e] - done, kTileRows), 0};", "count[e], 0};"),
    ("expert_mlp.cuh", "if (lane >= distance) row += rows_below", "if (lane > distance) row += rows_below"),
    ("expert_mlp.cuh", "u32(walk.shared ? pair : pair / Config::top_k) * Config::hidden", "u32(pair) * Config::hidden"),
    ("expert_mlp.cuh", "if (++unit < (shared ? SHARED_UNITS : UNITS)) return false;", "if (++unit < UNITS) return false;"),
    ("expert_mlp.cuh", "mbar_wait(bars + slot * 8, taken / kSlots % 2);", "mbar_wait(bars + slot * 8, 0);"),
    ("expert_mlp.cuh", "__syncwarp();   // every lane has read the slot", ""),
    ("expert_mlp.cuh", "__syncthreads();\n            for (int n = (warp + round)", "for (int n = (warp + round)"),
    ("expert_mlp.cuh", "sums + round++ % 2 *", "sums + round++ % 1 *"),
    ("expert_mlp.cuh", "for (int i = 1; i < kWarps; ++i) total", "for (int i = 2; i < kWarps; ++i) total"),
    ("expert_mlp.cuh", "x / (1.f + expf(-x))", "x / (1.f + expf(x))"),
    ("expert_mlp.cuh", "row[walk.unit * 8 + lane / 4] = to_bf16(value);", "row[walk.unit * 8 + lane % 8] = to_bf16(value);"),
    ("expert_mlp.cuh", "if (column >= walk.count) return;", "if (column > walk.count) return;"),
    ("expert_mlp.cuh", "if constexpr (Config::shared) sum = sum +", "if constexpr (false) sum = sum +"),
    ("expert_mlp.cuh", "sum = fma(gates[row * Config::top_k + slot],", "sum = fma(gates[row * Config::top_k],"),
    ("panel.cuh", "place(lower.y, dup_hi(lower_scales), 1, a[2], a[3]);", "place(lower.y, dup_lo(lower_scales), 1, a[2], a[3]);"),
    ("panel.cuh", "whole ? load16(from + 32) : make_uint4(0, 0, 0, 0)", "load16(from + 32)"),
    ("panel.cuh", "if (n >= columns.tiles) break;\n                const bool last",
     "if (n > 0) break;\n                const bool last"),
    # the warps' sums are added in another order where an expert has more than eight rows
    ("expert_mlp.cuh", "total + half[(i * kSumTiles + n) * 32 + lane]",
     "total + half[((tiles > 1 ? kWarps - i : i) * kSumTiles + n) * 32 + lane]"),
    # panels are summed apart, then together, where an expert has more than eight rows
    ("panel.cuh", "multiply_tile(sum[n], a, b);", "float apart[4] = {};\n                multiply_tile(apart, a, b);\n"
     "                for (int i = 0; i < 4; ++i) sum[n][i] += apart[i];"),
]  # fmt: skip
