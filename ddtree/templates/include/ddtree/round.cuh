// The row tables of a round, made on the GPU.
//
// A round is draft -> tree -> verify -> accept -> commit for the sequence slots in `Round::slots`, in that order. Each
// kernel is one block of kScratch threads, as many as a table has rows and a round has sequences at most.
// Test: tests/steps/test_round.py (against runtime/decoder.py)
#pragma once
#include "ddtree/rows.cuh"

namespace ddtree {

struct Round {          // what persists between rounds, in device memory
    int active;         // sequences in the round
    int budget;         // nodes below a tree's root; fewer when the sequences' trees would not fit the rows of a round
    u32 turn;           // rounds so far
    u32 launches;       // launches of the graph that have ended
    int* slots;         // [active] their slots, in row order
    int* committed;     // [slots] committed positions
    int* anchor;        // [slots] the emitted token that is not committed yet
    int* remaining;     // [slots] tokens that may still be produced
    int* limit;         // [slots] positions that have a page
    int* budgets;       // [slots] nodes below the root in this round
    u64 time[3];        // nanoseconds: when this round began, its tree was drafted, its tree was verified
};

// The row capacities of the verify step, ascending.
template <int... Rows>
struct Buckets {
    static DEVICE int index(int rows) { return (0 + ... + int(rows > Rows)); }   // of the smallest that holds `rows`
};

// Columns of a row table that a kernel may write; the table's own pointers are const.
struct RowsOut {
    Rows* table;
    DEVICE void set(int row, int sequence, int position, int parent, int node) const {
        const_cast<int*>(table->sequence)[row] = sequence;
        const_cast<int*>(table->position)[row] = position;
        const_cast<int*>(table->parent)[row] = parent;
        const_cast<int*>(table->node)[row] = node;
    }
};

// first[i]: first row of the i-th active slot, when slot s has size[s] rows; first[active]: the number of all rows. The
// whole block calls it.
DEVICE void first_rows(const Round* round, const int* size, int (&first)[kScratch + 1]) {
    SHARED_ARRAY(int, sizes, kScratch);
    const int i = threadIdx.x, active = round->active;
    if (i < active) sizes[i] = size[round->slots[i]];
    __syncthreads();
    if (i <= active) {
        int sum = 0;
        for (int k = 0; k < i; ++k) sum += sizes[k];
        first[i] = sum;
        if (i == kScratch - 1 && active == kScratch) first[active] = sum + sizes[i];
    }
    __syncthreads();
}

// Which of the active slots a row belongs to.
DEVICE int owner(const int (&first)[kScratch + 1], int row) {
    int i = 0;
    while (row >= first[i + 1]) ++i;
    return i;
}

// Rows of the drafter's blocks: [anchor, mask, mask, ...] of every active slot; all but the anchor's are wanted.
template <class Config>
DEVICE void draft_rows(Round* round, Rows* rows, int* ids) {
    pdl_launch_dependents();
    pdl_wait();
    const RowsOut out{rows};
    const int active = round->active, depths = Config::depths;
    if (!Config::chooses && threadIdx.x == 0) round->time[0] = nanoseconds();   // context_rows has begun the round otherwise
    const int most = Config::chooses ? kScratch - active : kScratch / active - 1;   // chosen from, or verified as they are
    if (threadIdx.x < active) round->budgets[round->slots[threadIdx.x]] = min(round->budget, most);
    for (int i = threadIdx.x; i < active * Config::block; i += blockDim.x) {
        const int slot = round->slots[i / Config::block], at = i % Config::block;
        out.set(i, slot, round->committed[slot] + at, -1, -1);
        ids[i] = at == 0 ? round->anchor[slot] : Config::mask_id;
    }
    for (int i = threadIdx.x; i < active * depths; i += blockDim.x)
        const_cast<int*>(rows->wanted)[i] = i / depths * Config::block + 1 + i % depths;
    if (threadIdx.x == 0) rows->count = active * Config::block, rows->wanted_count = active * depths;
}

// Rows of the trees, slot after slot in node order, and the choice of the row capacity at which they are verified.
// Without a drafter (Config::block == 0) a tree is its root.
template <class Config>
DEVICE void tree_rows(Round* round, const int* node_token, const int* node_parent,
                      const int* node_depth, int* count, Rows* rows, int* ids,
                      u64 choice) {
    SHARED_ARRAY(int, first, kScratch + 1);
    pdl_launch_dependents();
    pdl_wait();
    const RowsOut out{rows};
    const int active = round->active;
    if (threadIdx.x == 0) {
        round->time[1] = nanoseconds();
        if (Config::block == 0) round->time[0] = round->time[1];
    }
    if (Config::block == 0 && threadIdx.x < active) count[round->slots[threadIdx.x]] = 1;
    __syncthreads();
    first_rows(round, count, first);
    const int total = first[active];
    if (threadIdx.x < total) {
        const int row = threadIdx.x, i = owner(first, row), slot = round->slots[i], node = row - first[i];
        const int at = slot * Config::nodes + node;
        const int parent = Config::block == 0 || node == 0 ? -1 : first[i] + node_parent[at];
        const int depth = Config::block == 0 || node == 0 ? 0 : node_depth[at];
        out.set(row, slot, round->committed[slot] + depth, parent, node);
        const_cast<int*>(rows->wanted)[row] = row;
        ids[row] = node == 0 ? round->anchor[slot] : node_token[at];
    }
    if (threadIdx.x == 0) {
        rows->count = rows->wanted_count = total;
        graph_set_conditional(choice, Config::buckets::index(total));
    }
}

// Rows of the accepted paths: positions after the committed ones, and the tree row that each comes from.
template <class Config>
DEVICE void commit_rows(Round* round, const int* count, const int* path,
                        const int* length, Rows* rows) {
    SHARED_ARRAY(int, first, kScratch + 1);
    SHARED_ARRAY(int, tree, kScratch + 1);
    pdl_launch_dependents();
    pdl_wait();
    const RowsOut out{rows};
    const int active = round->active;
    if (threadIdx.x == 0) round->time[2] = nanoseconds();
    first_rows(round, length, first);
    first_rows(round, count, tree);
    const int total = first[active];
    if (threadIdx.x < total) {
        const int row = threadIdx.x, i = owner(first, row), slot = round->slots[i], j = row - first[i];
        out.set(row, slot, round->committed[slot] + j, -1, -1);
        const_cast<int*>(rows->source)[row] = tree[i] + path[slot * (Config::depths + 1) + j];
        const_cast<int*>(rows->wanted)[row] = row;
    }
    if (threadIdx.x == 0) rows->count = rows->wanted_count = total;
}

}  // namespace ddtree
