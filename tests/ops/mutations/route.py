"""Faults in the choice of experts."""

MUTATIONS = [
    ("route.cuh", "score == score ? score + bias :", "score == score ? score :"),
    ("route.cuh", "kPerLane = (Config::experts + kThreads - 1) / kThreads;", "kPerLane = 256 / kThreads;"),
    ("route.cuh", "if (key[i] == its_key) lowest = min(lowest, id[i]);", "if (key[i] == its_key) lowest = id[i];"),
    (
        "route.cuh",
        "const int winner = __reduce_min_sync(0xffffffffu, lowest);",
        "const int winner = __shfl_sync(0xffffffffu, lowest, 0);",
    ),
    ("route.cuh", "here = true, key[i] = 0;", "here = true;"),
    ("route.cuh", "__syncthreads();\n    if (warp > 0) return;", "if (warp > 0) return;"),
    ("route.cuh", "all.key[i] = at < kFinalists ? keys[at] : 0;", "all.key[i] = keys[at % Config::top_k];"),
    ("route.cuh", "(total + 1e-20f)", "total"),
    ("route.cuh", "return bits & 0x80000000u ? ~bits : bits | 0x80000000u;", "return bits;"),
]
