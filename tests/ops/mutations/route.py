"""Faults in the product with the router, in what its blocks hand to one another, and in the choice of experts."""

MUTATIONS = [
    ("route.cuh", "score == score ? score + bias :", "score == score ? score :"),
    ("route.cuh", "kPerLane = (Config::experts + kThreads - 1) / kThreads;", "kPerLane = 256 / kThreads;"),
    ("route.cuh", "if (key[i] == its_key) lowest = min(lowest, id[i]);", "if (key[i] == its_key) lowest = id[i];"),
    (
        "route.cuh",
        "const int winner = __reduce_min_sync(0xffffffffu, lowest);",
        "const int winner = __shfl_sync(0xffffffffu, lowest, 0);",
    ),
    ("route.cuh", "*its_score = score[i], key[i] = 0;", "*its_score = score[i];"),
    ("route.cuh", "finalists[at] = u64(key) << 32 | ~u32(id);", "finalists[at] = u64(key) << 32 | u32(id);"),
    ("route.cuh", "        }\n    __syncthreads();\n    if (thread < kFinalists)", "        }\n    if (thread < kFinalists)"),
    ("route.cuh", "rank += finalists[i] > key;", "rank += finalists[i] >= key;"),
    ("route.cuh", "(total + 1e-20f)", "total"),
    ("route.cuh", "return bits & 0x80000000u ? ~bits : bits | 0x80000000u;", "return bits;"),
    ("route_decode.cuh", "min(kChain, kSteps - step)", "kChain"),
    ("route_decode.cuh", "i < steps && column < Config::hidden ? load16", "i < steps ? load16"),
    ("route_decode.cuh", "float4* const half = places + round % 2 *", "float4* const half = places + round % 1 *"),
    ("route_decode.cuh", "for (int i = 1; i < kWarps; ++i) total", "for (int i = 2; i < kWarps; ++i) total"),
    ("route_decode.cuh", "place % 16 / 2 + j / 2 + j % 2 * 8", "place % 16 / 2 + j / 2 * 8 + j % 2"),
    ("route_decode.cuh", "            store16_relaxed(parts + i * kPlaces, empty);\n", ""),
    ("route_decode.cuh", "for (bool missing = true; missing;) {\n            missing = false;", "{\n            bool missing = false;"),
    ("route_decode.cuh", "if (row + 1 < rows) store8_relaxed", "if (row < rows) store8_relaxed"),
]  # fmt: skip
