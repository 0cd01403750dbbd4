"""Faults in mla_tree_attention.cuh and the headers that it shares with draft_attention.cuh."""

ATTENTION = "mla_tree_attention.cuh"

MUTATIONS = [
    (ATTENTION, "if (position >= committed) return", "if (position > committed) return"),
    (ATTENTION, "position % kPage) *", "position % kPage / 2 * 2) *"),
    (ATTENTION, "row + vector * 8, valid);", "row + vector * 8, true);"),
    (ATTENTION, "const int step = 4 * k + quarter;\n        if", "const int step = 4 * k + quarter / 2 * 2;\n        if"),
    (ATTENTION, "step < M::steps && head < Config::heads", "step < M::steps - 1 && head < Config::heads"),
    (ATTENTION, "begin + first + k <= last ? ex2", "begin + first + k < last ? ex2"),
    (ATTENTION, "fmaf(sum.total, factor, p[0])", "sum.total + p[0]"),
    (ATTENTION, "*= i % 2 ? odd : even", "*= i % 2 ? even : odd"),
    (ATTENTION, "shared.path[depth] = rows.node[node]", "shared.path[depth] = node"),
    (ATTENTION, "keys.end = min(position + 1, segment_begin(segment + 1));", "keys.end = segment_begin(segment + 1);"),
    (ATTENTION, "if (segment >= unshared) continue;", "if (segment > unshared) continue;"),
    (ATTENTION, "segment_of(rows->position[row]) + 1", "segment_of(rows->committed[rows->sequence[row]]) + 1"),
    (ATTENTION, "rows.sequence[first] == sequence; ++first", "rows.sequence[first] >= 0; ++first"),
    ("row_groups.cuh", "earlier += theirs == sequence && other < row", "earlier += other < row"),
    ("row_groups.cuh", "min(GROUP, siblings[start[group]] - earlier[start[group]])", "GROUP"),
    ("attention_merge.cuh", "fmaf(theirs.y, weight, total * keep)", "fmaf(theirs.y, weight, total)"),
    # weights are added from left to right: another sum for every number of keys that a thread has
    (ATTENTION, """    for (int distance = 1; distance < TILES; distance *= 2)
#pragma unroll
        for (int k = 0; k < TILES; k += 2 * distance) p[k] += p[k + distance];""",
     "    for (int k = 1; k < TILES; ++k) p[0] += p[k];"),
    # quarters of a score are added in another order where rows share keys
    (ATTENTION, "const float s = (shared.scores[0][query][first + k] + shared.scores[1][query][first + k]) +",
     "const float s = TILES > 1 ? (shared.scores[0][query][first + k] + shared.scores[1][query][first + k] +"
     " shared.scores[2][query][first + k]) + shared.scores[3][query][first + k] :"
     " (shared.scores[0][query][first + k] + shared.scores[1][query][first + k]) +"),
    # the weights' sum is that of the rounded weights
    (ATTENTION, "shared.weights[query][first + k] = to_bf16(p[k]);",
     "shared.weights[query][first + k] = to_bf16(p[k]), p[k] = to_float(shared.weights[query][first + k]);"),
    # two segments for the same positions
    (ATTENTION, "return position < 8192 ?", "return position < 4096 ?"),
    # a segment ends before the next one begins
    (ATTENTION, "64 + (position - 8192) / 512", "64 + (position - 8192 + 64) / 512"),
    # scores below zero: every weight of the merge vanishes
    ("attention_merge.cuh", "float peak = kNoPeak, total = 0.f;", "float peak = 0.f, total = 0.f;"),
]  # fmt: skip
