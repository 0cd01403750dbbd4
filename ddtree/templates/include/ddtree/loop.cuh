// The end of a round: sequences move, end or go on, the host gets a record, and the loop decides whether it runs again.
//
// Rounds run in a loop on the GPU (a WHILE node) or one by one from the host; the kernel is the same. The host and the GPU
// share a ring of records and a few words in pinned host memory:
//
//   ring      [Config::ring] RoundRecord, the record of round t in entry t % ring
//   Control   the GPU releases `head` after a record, and `ended` after a launch's last; the host asks for a pause and says how
//             many records it has read. The loop ends when no sequence is left, one lacks a page for what a round may commit, the
//             host asks for it, or the ring is full. Whatever ended it, the same graph goes on at the next launch.
//
// Test: tests/steps/test_round.py
#pragma once
#include "ddtree/budget_state.cuh"
#include "ddtree/round.cuh"

namespace ddtree {

struct Control {        // two cache lines, each with one writer
    u32 head;           // rounds recorded
    u32 ended;          // launches that have ended
    u32 unused[14];
    u32 pause;          // nonzero: the round that runs is the last
    u32 tail;           // records that the host has read
};

template <class Config>
struct SlotRecord {
    static constexpr int wide = Config::depths + 1;
    int length, kept, done, nodes;
    int path[wide], emitted[wide];
    int token[Config::nodes], parent[Config::nodes], depth[Config::nodes];
};

template <class Config>
struct RoundRecord {    // arrays by slot; what belongs to no active slot is left as it was
    u64 time[4];        // Round::time, and when the record was written
    int active, rows;   // sequences of the round, rows that were verified
    int slots[Config::sequences];
    int drafted, unused;
    double ms, expected, before;   // as in BudgetState, and the slots' `factor`; left as they were where rounds choose no sizes
    double factor[Config::sequences][Config::depths + 1];
    double score[Config::sequences][Config::nodes];
    SlotRecord<Config> slot[Config::sequences];
};

// What a step left for each slot.
struct Outcome {
    const int *count, *path, *length, *emitted, *kept, *done, *token, *parent, *depth;
    const double* score;
};

template <class Config>
DEVICE void record_slot(const Round* round, const Outcome& out, int slot, RoundRecord<Config>& record) {
    constexpr int wide = Config::depths + 1;
    SlotRecord<Config>& to = record.slot[slot];
    const int nodes = out.count[slot];
    for (int k = threadIdx.x; k < wide; k += blockDim.x) {
        to.path[k] = out.path[slot * wide + k];
        to.emitted[k] = out.emitted[slot * wide + k];
    }
    for (int n = threadIdx.x; n < nodes; n += blockDim.x) {
        const int at = slot * Config::nodes + n;
        to.token[n] = n == 0 ? round->anchor[slot] : out.token[at];
        to.parent[n] = n == 0 ? -1 : out.parent[at];
        to.depth[n] = n == 0 ? 0 : out.depth[at];
        record.score[slot][n] = n == 0 ? 0.0 : out.score[at];
    }
    if (threadIdx.x == 0) to.length = out.length[slot], to.kept = out.kept[slot], to.done = out.done[slot], to.nodes = nodes;
}

// Why the round had its size.
template <class Config>
DEVICE void record_choice(const Round* round, const BudgetStateOf<Config>& budget, RoundRecord<Config>& record) {
    constexpr int wide = Config::depths + 1;
    for (int at = threadIdx.x; at < round->active * wide; at += blockDim.x) {
        const int slot = round->slots[at / wide];
        record.factor[slot][at % wide] = budget.slot[slot].factor[at % wide];
    }
    if (threadIdx.x == 0) {
        record.drafted = budget.drafted;
        record.ms = budget.ms, record.expected = budget.expected, record.before = budget.before;
    }
}

// `more`: the condition of the WHILE node, or 0 when the host launches every round. `budget` matters where rounds choose sizes.
template <class Config>
DEVICE void advance(Round* round, const Outcome& out, RoundRecord<Config>* ring, Control* control,
                    const BudgetStateOf<Config>* budget, u64 more) {
    static_assert(sizeof(RoundRecord<Config>) == Config::record_bytes, "what the host reads");
    constexpr int wide = Config::depths + 1;
    SHARED_ARRAY(int, ends, kScratch);
    SHARED_ARRAY(int, lacks, kScratch);
    SHARED_ARRAY(int, sizes, kScratch);
    SHARED_ARRAY(u32, asked, 2);   // not registers: ptxas of CUDA 13.0 spilled them
    pdl_launch_dependents();
    if (threadIdx.x == 0) {   // the host's words: the way to its memory is long, and need not wait for the round
        asked[0] = ld_acquire_sys(&control->pause);
        asked[1] = ld_acquire_sys(&control->tail);
    }
    pdl_wait();
    const int active = round->active, i = threadIdx.x;
    RoundRecord<Config>& record = ring[round->turn % Config::ring];
    for (int k = 0; k < active; ++k) record_slot(round, out, round->slots[k], record);
    if constexpr (Config::chooses) record_choice(round, *budget, record);
    const int slot = i < active ? round->slots[i] : 0;
    __syncthreads();   // anchors and slots are read above and replaced below

    if (i < active) {
        const int n = out.length[slot], committed = round->committed[slot] + n;
        record.slots[i] = slot;
        round->anchor[slot] = out.emitted[slot * wide + n - 1];
        round->committed[slot] = committed;
        round->remaining[slot] -= n;
        ends[i] = out.done[slot] != 0;
        lacks[i] = !ends[i] && committed + wide > round->limit[slot];
        sizes[i] = out.count[slot];
    }
    __syncthreads();
    int before = 0;
    for (int k = 0; k < i && k < active; ++k) before += !ends[k];
    if (i < active && !ends[i]) round->slots[before] = slot;
    if (i != 0) return;

    int left = 0, lacking = 0, rows = 0;
    for (int k = 0; k < active; ++k) left += !ends[k], lacking += lacks[k], rows += sizes[k];
    const u32 turn = ++round->turn;
    const bool again = more != 0 && left > 0 && lacking == 0 && asked[0] == 0 && turn - asked[1] < u32(Config::ring);
    round->active = left;
    record.active = active, record.rows = rows;
    for (int k = 0; k < 3; ++k) record.time[k] = round->time[k];
    record.time[3] = nanoseconds();
    st_release_sys(&control->head, turn);
    if (!again) st_release_sys(&control->ended, ++round->launches);
    graph_set_conditional(more, again);   // last: a call that the driver links, across which registers would be spilled
}

}  // namespace ddtree
