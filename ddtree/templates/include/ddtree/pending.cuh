// Rounds without a draft: the features of their rows wait until the drafter takes them into its context in one batch.
//
//   keep_features   after the verify step of such a round: each sequence has one row, in slot order. grid (sequences), a block
//                   for each
//   context_rows    begins a round: the row table of the context step, whose rows come from `pending`. Rows wait no longer when
//                   the round drafts, or when a sequence has no room for one more. Otherwise the table is empty, and `take_in` 0.
//                   It sets the conditions of the round's branches: whether the drafter takes rows in, whether it drafts, and
//                   whether the round ends with the commit step. One block
//
//   features  [rows of the verify step] rows of Config::row_bytes
//   pending   [sequences, Config::pending] rows, the context step's `features`
//   Test: tests/steps/test_pending.py
#pragma once
#include "ddtree/budget_state.cuh"
#include "ddtree/copy.cuh"
#include "ddtree/round.cuh"

namespace ddtree {

template <class Config>
DEVICE void keep_features(const int* sequences, const int* slots, const unsigned char* features, unsigned char* pending,
                          BudgetStateOf<Config>* state) {
    pdl_launch_dependents();
    pdl_wait();
    const int i = blockIdx.x;
    if (i >= *sequences) return;
    const int slot = slots[i], waiting = state->slot[slot].waiting;
    copy_row<Config>(pending + size_t(slot * Config::pending + waiting) * Config::row_bytes, features + size_t(i) * Config::row_bytes);
    __syncthreads();   // all threads have read the count
    if (threadIdx.x == 0) state->slot[slot].waiting = waiting + 1;
}

template <class Config>
DEVICE void context_rows(Round* round, Rows* rows, BudgetStateOf<Config>* state, u64 on_take_in,
                         u64 on_draft, u64 on_commit) {
    pdl_launch_dependents();
    pdl_wait();
    const RowsOut out{rows};
    const int active = round->active, *slots = round->slots;
    const bool draft = state->draft;
    int total = 0;
    bool full = false;
    for (int i = 0; i < active; ++i) {
        const int waiting = state->slot[slots[i]].waiting;
        total += waiting;
        full = full || waiting == Config::pending;
    }
    const bool take_in = total > 0 && (draft || full);
    int first = 0;
    for (int i = 0; take_in && i < active; ++i) {
        const int slot = slots[i], waiting = state->slot[slot].waiting;
        for (int k = threadIdx.x; k < waiting; k += blockDim.x) {
            out.set(first + k, slot, round->committed[slot] - waiting + k, -1, -1);
            const_cast<int*>(rows->source)[first + k] = slot * Config::pending + k;
            const_cast<int*>(rows->wanted)[first + k] = first + k;
        }
        first += waiting;
    }
    __syncthreads();   // all threads have read the counts
    if (take_in)
        for (int i = threadIdx.x; i < active; i += blockDim.x) state->slot[slots[i]].waiting = 0;
    if (threadIdx.x == 0) {
        state->take_in = take_in;
        rows->count = rows->wanted_count = first;
        round->time[0] = nanoseconds();
    }
    if (threadIdx.x < 3)   // one place, the last: a call that the driver links, across which registers would be spilled
        graph_set_conditional(threadIdx.x == 0 ? on_take_in : threadIdx.x == 1 ? on_draft : on_commit, threadIdx.x == 0 ? take_in : draft);
}

}  // namespace ddtree
