// The walk from each tree's root along the target's own choices.
//
//   ids, chosen    [rows] int32: a row's token, and the target's token after it
//   path, emitted  [sequences, depths + 1] int32, -1 past `length`         length  [sequences] int32
//   grid (1), block kScratch threads: one thread a row; at most kScratch rows
//
// A row is accepted when it and all its ancestors below the root are what the target chose after their parents. Siblings
// hold distinct tokens, so the accepted rows of a sequence are one path, and each knows its place on it: its depth. A
// sequence's result depends on its own rows alone. Rows deeper than `depths` cannot be accepted.
// Test: tests/ops/test_accept.py
#pragma once
#include "ddtree/rows.cuh"

namespace ddtree {

template <class Config>
DEVICE void accept(const int* ids, const int* chosen, const Rows* rows, int* path, int* length, int* emitted) {
    constexpr int width = Config::depths + 1;
    SHARED_ARRAY(int, parent, kScratch);
    SHARED_ARRAY(bool, matches, kScratch);
    SHARED_ARRAY(int, longest, Config::sequences);
    pdl_launch_dependents();
    pdl_wait();
    const int row = threadIdx.x, sequences = rows->sequences;
    const bool live = row < rows->count;
    for (int i = row; i < sequences * width; i += kScratch) path[i] = emitted[i] = -1;
    for (int s = row; s < sequences; s += kScratch) longest[s] = 0;
    if (live) {
        const int up = rows->parent[row];
        parent[row] = up;
        matches[row] = up >= 0 && ids[row] == chosen[up];
    }
    __syncthreads();

    if (live) {
        int at = row, depth = 0;
        while (depth < width && parent[at] >= 0 && matches[at]) {
            at = parent[at];
            ++depth;
        }
        if (depth < width && parent[at] < 0) {
            const int s = rows->sequence[row];
            path[s * width + depth] = rows->node[row];
            emitted[s * width + depth] = chosen[row];
            atomicMax(longest + s, depth + 1);
        }
    }
    __syncthreads();
    for (int s = row; s < sequences; s += kScratch) length[s] = longest[s];
}

}  // namespace ddtree
