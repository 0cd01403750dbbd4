// The rows of a step, brought together by sequence: attention reads a key once for several rows of one sequence.
//
// A group is up to GROUP rows of one sequence. Rows may come in any order; inside a sequence they keep theirs. Every block
// builds the same groups for itself (at most CAPACITY rows, a few hundred cycles), because the table may change between
// replays of a captured graph. Which rows share a group never changes a bit of any of them.
// Tests: tests/ops/test_mla_tree_attention.py, tests/ops/test_draft_attention.py
#pragma once
#include "ddtree/rows.cuh"

namespace ddtree {

template <int CAPACITY, int GROUP>
struct RowGroups {
    int order[CAPACITY];      // rows by sequence; index i below is an index into this
    int earlier[CAPACITY];    // [i] rows of the same sequence before row order[i]
    int siblings[CAPACITY];   // [i] rows of the same sequence
    int start[CAPACITY];      // [group] index of its first row
    int count;                // groups

    DEVICE int size(int group) const { return min(GROUP, siblings[start[group]] - earlier[start[group]]); }
    DEVICE const int* rows(int group) const { return order + start[group]; }
    DEVICE const int* sequence_rows(int group) const { return rows(group) - earlier[start[group]]; }
    DEVICE int sequence_size(int group) const { return siblings[start[group]]; }
};

// All threads of the block call it; ends with a barrier.
template <int CAPACITY, int GROUP>
DEVICE void group_rows(RowGroups<CAPACITY, GROUP>& groups, const Rows& rows) {
    for (int row = threadIdx.x; row < rows.count; row += blockDim.x) {
        const int sequence = rows.sequence[row];
        int smaller = 0, earlier = 0, siblings = 0;
        for (int other = 0; other < rows.count; ++other) {
            const int theirs = rows.sequence[other];
            smaller += theirs < sequence;
            earlier += theirs == sequence && other < row;
            siblings += theirs == sequence;
        }
        groups.order[smaller + earlier] = row;
        groups.earlier[smaller + earlier] = earlier;
        groups.siblings[smaller + earlier] = siblings;
    }
    __syncthreads();
    for (int i = threadIdx.x; i <= rows.count; i += blockDim.x) {
        int before = 0;   // groups that start before index i
        for (int j = 0; j < i; ++j) before += groups.earlier[j] % GROUP == 0;
        if (i == rows.count) groups.count = before;
        else if (groups.earlier[i] % GROUP == 0) groups.start[before] = i;
    }
    __syncthreads();
}

}  // namespace ddtree
