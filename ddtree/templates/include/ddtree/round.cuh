// The row tables of a round, made on the GPU, and the record that a round leaves for the host.
//
// A round is draft -> tree -> verify -> accept -> commit for the sequence slots in `Round::slots`, in that order. Each
// kernel is one block; tables have at most 64 rows. Test: tests/steps/test_round.py (against runtime/decoder.py).
#pragma once
#include "ddtree/rows.cuh"

namespace ddtree {

struct Round {          // what persists between rounds, in device memory
    int active;         // sequences in the round
    int turn;           // rounds so far; the host waits for it
    int* slots;         // [active] their slots, in row order
    int* committed;     // [slots] committed positions
    int* anchor;        // [slots] the emitted token that is not committed yet
    int* remaining;     // [slots] tokens that may still be produced
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

// Rows of the drafter's blocks: [anchor, mask, mask, ...] of every active slot; all but the anchor's are wanted.
template <class Config>
DEVICE void draft_rows(const Round* __restrict__ round, Rows* __restrict__ rows, int* __restrict__ ids) {
    pdl_launch_dependents();
    pdl_wait();
    const RowsOut out{rows};
    const int active = round->active, depths = Config::depths;
    for (int i = threadIdx.x; i < active * Config::block; i += blockDim.x) {
        const int slot = round->slots[i / Config::block], at = i % Config::block;
        out.set(i, slot, round->committed[slot] + at, -1, -1);
        ids[i] = at == 0 ? round->anchor[slot] : Config::mask_id;
    }
    for (int i = threadIdx.x; i < active * depths; i += blockDim.x)
        const_cast<int*>(rows->wanted)[i] = i / depths * Config::block + 1 + i % depths;
    if (threadIdx.x == 0) rows->count = active * Config::block, rows->wanted_count = active * depths;
}

// First row of the i-th active slot, and the number of all rows, when slot s has size[s] rows.
DEVICE int first_row(const Round* round, const int* size, int i) {
    int first = 0;
    for (int k = 0; k < i; ++k) first += size[round->slots[k]];
    return first;
}

// Rows of the trees, slot after slot in node order. Without a drafter (Config::block == 0) a tree is its root.
template <class Config>
DEVICE void tree_rows(const Round* __restrict__ round, const int* __restrict__ node_token, const int* __restrict__ node_parent,
                      const int* __restrict__ node_depth, int* __restrict__ count, Rows* __restrict__ rows, int* __restrict__ ids) {
    pdl_launch_dependents();
    pdl_wait();
    const RowsOut out{rows};
    const int active = round->active;
    if (Config::block == 0) {
        for (int i = threadIdx.x; i < active; i += blockDim.x) count[round->slots[i]] = 1;
        __syncthreads();
    }
    for (int i = 0; i < active; ++i) {
        const int slot = round->slots[i], first = first_row(round, count, i), nodes = count[slot];
        for (int n = threadIdx.x; n < nodes; n += blockDim.x) {
            const int at = slot * Config::nodes + n;
            const int parent = Config::block == 0 || n == 0 ? -1 : first + node_parent[at];
            const int depth = Config::block == 0 ? 0 : node_depth[at];
            out.set(first + n, slot, round->committed[slot] + depth, parent, n);
            const_cast<int*>(rows->wanted)[first + n] = first + n;
            ids[first + n] = n == 0 ? round->anchor[slot] : node_token[at];
        }
    }
    if (threadIdx.x == 0) rows->count = rows->wanted_count = first_row(round, count, active);
}

// Rows of the accepted paths: positions after the committed ones, and the tree row that each comes from.
template <class Config>
DEVICE void commit_rows(const Round* __restrict__ round, const int* __restrict__ count, const int* __restrict__ path,
                        const int* __restrict__ length, Rows* __restrict__ rows) {
    pdl_launch_dependents();
    pdl_wait();
    const RowsOut out{rows};
    const int active = round->active;
    for (int i = 0; i < active; ++i) {
        const int slot = round->slots[i], first = first_row(round, length, i), tree = first_row(round, count, i);
        for (int j = threadIdx.x; j < length[slot]; j += blockDim.x) {
            out.set(first + j, slot, round->committed[slot] + j, -1, -1);
            const_cast<int*>(rows->source)[first + j] = tree + path[slot * (Config::depths + 1) + j];
            const_cast<int*>(rows->wanted)[first + j] = first + j;
        }
    }
    if (threadIdx.x == 0) rows->count = rows->wanted_count = first_row(round, length, active);
}

// Move every sequence past its path, and write the round's record to host memory: per slot
// [length, kept, done, nodes, path x (depths + 1), emitted x (depths + 1), token, parent, depth x nodes],
// and the scores apart as doubles; `flag` last, released to the system.
template <class Config>
DEVICE void advance(Round* __restrict__ round, const int* __restrict__ count, const int* __restrict__ path, const int* __restrict__ length,
                    const int* __restrict__ emitted, const int* __restrict__ kept, const int* __restrict__ done,
                    const int* __restrict__ node_token, const int* __restrict__ node_parent, const int* __restrict__ node_depth,
                    const double* __restrict__ node_score, int* __restrict__ record, double* __restrict__ scores, u32* __restrict__ flag) {
    pdl_launch_dependents();
    pdl_wait();
    constexpr int wide = Config::depths + 1, slot_ints = 4 + 2 * wide + 3 * Config::nodes;
    for (int i = 0; i < round->active; ++i) {
        const int slot = round->slots[i], nodes = count[slot];
        int* to = record + slot * slot_ints;
        for (int k = threadIdx.x; k < wide; k += blockDim.x) {
            to[4 + k] = path[slot * wide + k];
            to[4 + wide + k] = emitted[slot * wide + k];
        }
        for (int n = threadIdx.x; n < nodes; n += blockDim.x) {
            const int at = slot * Config::nodes + n;
            int* node = to + 4 + 2 * wide + n;
            node[0] = n == 0 ? round->anchor[slot] : node_token[at];
            node[Config::nodes] = n == 0 ? -1 : node_parent[at];
            node[2 * Config::nodes] = n == 0 ? 0 : node_depth[at];
            scores[at] = n == 0 ? 0.0 : node_score[at];
        }
        __syncthreads();  // the anchor is read above and replaced below
        if (threadIdx.x == 0) {
            to[0] = length[slot], to[1] = kept[slot], to[2] = done[slot], to[3] = nodes;
            round->anchor[slot] = emitted[slot * wide + length[slot] - 1];
            round->committed[slot] += length[slot];
            round->remaining[slot] -= length[slot];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) st_release_sys(flag, u32(++round->turn));
}

}  // namespace ddtree
