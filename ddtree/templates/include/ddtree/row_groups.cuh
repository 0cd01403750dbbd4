// The rows of a step, brought together by sequence: attention reads a key once for several rows of one sequence.
//
// A group is up to SIZE rows of one sequence. Rows may come in any order; inside a sequence they keep theirs. Every block
// builds the same groups for itself (a few hundred cycles), because the table may change between replays of a captured
// graph. Which rows share a group never changes a bit of any of them.
// Tests: tests/ops/test_mla_tree_attention.py, tests/ops/test_draft_attention.py
#pragma once
#include "ddtree/rows.cuh"

namespace ddtree {

template <int CAPACITY>
struct RowGroups {
    int sequence[CAPACITY];    // [row]
    u16 order[CAPACITY];       // rows by sequence; index i below is an index into this
    u16 earlier[CAPACITY];     // [i] rows of the same sequence before row order[i]
    u16 siblings[CAPACITY];    // [i] rows of the same sequence
    u16 start[CAPACITY];       // [group] index of its first row
    int count, size;           // groups, and the most rows of one

    DEVICE int rows_of(int group) const { return min(size, siblings[start[group]] - earlier[start[group]]); }
    DEVICE const u16* rows(int group) const { return order + start[group]; }
    DEVICE const u16* sequence_rows(int group) const { return rows(group) - earlier[start[group]]; }
    DEVICE int sequence_size(int group) const { return siblings[start[group]]; }
};

// All threads of the block call it; ends with a barrier.
template <int CAPACITY>
DEVICE void sort_rows(RowGroups<CAPACITY>& groups, const Rows& rows) {
    bool same = true;   // mostly there is one sequence
    for (int row = threadIdx.x; row < rows.count; row += blockDim.x) {
        groups.sequence[row] = rows.sequence[row];
        same &= rows.sequence[row] == rows.sequence[0];
    }
    same = __syncthreads_and(same);
    for (int row = threadIdx.x; row < rows.count; row += blockDim.x) {
        const int sequence = groups.sequence[row];
        int smaller = 0, earlier = row, siblings = rows.count;
        if (!same) {
            earlier = siblings = 0;
#pragma unroll 8
            for (int other = 0; other < rows.count; ++other) {
                const int theirs = groups.sequence[other];
                smaller += theirs < sequence;
                earlier += theirs == sequence && other < row;
                siblings += theirs == sequence;
            }
        }
        groups.order[smaller + earlier] = u16(row);
        groups.earlier[smaller + earlier] = u16(earlier);
        groups.siblings[smaller + earlier] = u16(siblings);
    }
    __syncthreads();
}

// After sort_rows: groups of at most SIZE rows. All threads of the block call it; ends with a barrier.
template <int SIZE, int CAPACITY>
DEVICE void cut_groups(RowGroups<CAPACITY>& groups, const Rows& rows) {
    if (threadIdx.x < 32) {
        int count = 0;
        for (int base = 0; base < rows.count; base += 32) {
            const int i = base + threadIdx.x;
            const bool first = i < rows.count && groups.earlier[i] % SIZE == 0;
            const u32 all = __ballot_sync(0xffffffffu, first);
            if (first) groups.start[count + __popc(all & ((1u << threadIdx.x) - 1))] = u16(i);
            count += __popc(all);
        }
        if (threadIdx.x == 0) groups.count = count, groups.size = SIZE;
    }
    __syncthreads();
}

}  // namespace ddtree
