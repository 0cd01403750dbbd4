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
]
