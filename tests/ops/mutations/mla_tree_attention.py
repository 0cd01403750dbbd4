"""Faults in mla_tree_attention.cuh, its tiles and the headers that it shares with draft_attention.cuh."""

ATTENTION, TILE = "mla_tree_attention.cuh", "mla_tree_attention_tile.cuh"
GROUPS, MERGE = "row_groups.cuh", "attention_merge.cuh"

MUTATIONS = [
    (TILE, "return position < committed ? pages", "return position <= committed ? pages"),
    (TILE, "u32(position) % kPage)", "u32(position) % kPage / 2 * 2)"),
    (TILE, "valid = !Keys::masked || tile + copied_key() < keys.end;", "valid = true;"),
    (TILE, "lane / 16 * 16 + quarter * 32;", "lane / 16 * 16 + quarter / 2 * 64;"),
    (TILE, "(M::steps % 4 == 0 || step < M::steps)", "(M::steps % 4 == 0 || step < M::steps - 1)"),
    (TILE, "<= shared.last[tile];", "< shared.last[tile];"),
    (TILE, "fmaf(sum.total[odd], factor[odd],", "fmaf(sum.total[odd], 1.f,"),
    (TILE, "*= i % 2 ? odd : even", "*= i % 2 ? even : odd"),
    (TILE, "if (before != kNoPeak) factor[odd] = ex2(before - now);", ""),
    # corrections of an earlier tile are applied again
    (TILE, "& 0xff) == 0) continue;", "& 0xff) == 0xff) continue;"),
    # a peak is never passed: weights without bound
    (TILE, "if (raised) {   // seldom", "if (raised && sum.peak[0] == kNoPeak) {   // seldom"),
    # quarters of a score are added in another order where rows share keys
    (TILE, "? (own[half][i] + element(part[0], i)) + (element(part[1], i) + element(part[2], i))",
     "? ((own[half][i] + element(part[0], i)) + element(part[1], i)) + element(part[2], i)"),
    # the weights' sum is that of the rounded weights
    (TILE, "factor[odd], (p[0][odd] + p[0][odd + 2]) + (p[1][odd] + p[1][odd + 2]));",
     "factor[odd], (round_bf16(p[0][odd]) + round_bf16(p[0][odd + 2])) + (round_bf16(p[1][odd]) + round_bf16(p[1][odd + 2])));"),
    # a later walk's tile is another one
    (TILE, "left > 2 ? next + kTileKeys : following()", "left > 2 ? next + kTileKeys : following() + kTileKeys"),
    # fast warps overwrite the weights that slow ones still read
    (TILE, "__syncthreads();   // the tile is there; scores, weights and the other buffer are free", ""),
    (ATTENTION, "shared.walk.path[depth] = shared.node[node]", "shared.walk.path[depth] = node"),
    (ATTENTION, "min(position + 1, whole ? segment_begin(part + 1) : begin + piece_length(to.segment))",
     "whole ? segment_begin(part + 1) : begin + piece_length(to.segment)"),
    (ATTENTION, "rank(shared.unit_rounds - 1) >= end.part()", "rank(shared.unit_rounds - 1) > end.part()"),
    (ATTENTION, "MlaPlace(rows->position[row]).part() + 1", "MlaPlace(rows->committed[rows->sequence[row]]).part() + 1"),
    (ATTENTION, "rows.sequence[next] == sequence; ++next", "rows.sequence[next] >= 0; ++next"),
    # rows that have left a segment get its pieces too
    (ATTENTION, "return !piece || segment_of(shared.position[row]) == shared.unit_segment;", "return true;"),
    # a row in the next segment has a piece of its segment before
    (ATTENTION, "const bool whole = from.segment < to.segment && !second;", "const bool whole = false;"),
    # two segments for the same positions
    (ATTENTION, "return position < 4096 ?", "return position < 2048 ?"),
    # a segment ends before the next one begins
    (ATTENTION, "32 + (position - 4096) / 256", "32 + (position - 4096 + 64) / 256"),
    (GROUPS, "earlier += theirs == sequence && other < row", "earlier += other < row"),
    (GROUPS, "min(size, siblings[start[group]] - earlier[start[group]])", "size"),
    (MERGE, "total = fmaf(theirs.y, ex2(theirs.x - peak), total);", "total += theirs.y;"),
    # scores below zero: every weight of the merge vanishes
    (MERGE, "float peak = kNoPeak, total = 0.f;", "float peak = 0.f, total = 0.f;"),
    # a strand's later parts are lost
    (MERGE, "fetch(first + ahead * strands);", ""),
]  # fmt: skip
