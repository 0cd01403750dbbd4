// Accepted lengths from a list instead of from the target, for timings of models whose weights make no text.
//
//   trace    [1 + n] int32: n, then the length of each round of a sequence, the bonus counted; from the start again after the last
//   turns    [sequences] int32: rounds of the sequence so far
//   chosen   [rows] int32: the verify step's choice after each row
//   path, length, emitted, kept, done   as accept and stop leave them; replaced
//   one block of kScratch threads, one for each sequence of the round
//
// A round accepts its tree's first node of the wanted depth, or of the greatest below that, and what is above it.
// See runtime/accept_trace.py. Test: tests/steps/test_accept_trace.py
#pragma once
#include "ddtree/round.cuh"

namespace ddtree {

struct Accepted {
    int *path, *length, *emitted, *kept, *done;
};

template <class Config>
DEVICE void force_accept(const Round* round, const int* trace, int* turns, const int* node_token,
                         const int* node_parent, const int* node_depth, const int* count,
                         const int* chosen, const Accepted& out) {
    constexpr int wide = Config::depths + 1;
    SHARED_ARRAY(int, first, kScratch + 1);
    pdl_launch_dependents();
    pdl_wait();
    first_rows(round, count, first);
    const int i = threadIdx.x;
    if (i >= round->active) return;
    const int slot = round->slots[i], wanted = trace[1 + turns[slot] % trace[0]], tree = slot * Config::nodes;
    int deepest = 0, node = 0;
    for (int n = 1; n < count[slot]; ++n)   // a node comes after those above it
        if (const int depth = node_depth[tree + n]; depth > deepest && depth < wanted) deepest = depth, node = n;

    int *path = out.path + slot * wide, *emitted = out.emitted + slot * wide;
    for (int d = deepest + 1; d < wide; ++d) path[d] = emitted[d] = -1;
    const int bonus = chosen[first[i] + node], left = round->remaining[slot], length = deepest + 1;
    emitted[deepest] = bonus;
    for (int d = deepest; d > 0; --d, node = node_parent[tree + node]) path[d] = node, emitted[d - 1] = node_token[tree + node];
    path[0] = 0;
    out.length[slot] = length;
    out.kept[slot] = min(length, left);
    out.done[slot] = bonus < 0 ? 3 : length >= left ? 2 : 0;
    ++turns[slot];
}

}  // namespace ddtree
