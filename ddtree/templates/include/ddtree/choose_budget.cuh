// The size of a round's trees under `budget: auto`, and what the round taught; the same decisions as graph/budget.py, bit for
// bit.
//
//   choose_budget   after build_tree, or at the start of a round without a draft: how many nodes of each tree are verified
//   settle_budget   after accept: follows each tree by the new tokens, books what drafting lost, decides on the next draft
//
//   active, slots  how many sequences the round has, and their slots in row order
//   costs          fp64 (Costs.table): milliseconds of everything after the draft for each row capacity, of a draft, and for
//                  each row capacity the inverse of both together
//   node_*, count  build_tree's outputs for trees at their largest, [sequences, nodes] and [sequences]; they must stay until
//                  the next draft. choose_budget replaces `count` by the rows that the round verifies, the root included
//   emitted, length  accept's outputs
//   state          struct BudgetState; the host may read it after each kernel
//   grid 1, one block of Config::threads; a launch may follow and precede others programmatically
//
// Floating point is fp64 with products and sums rounded one by one (never fused), and sums have a fixed shape, so that host
// and GPU agree. Nothing is ordered by threads: the counters are integers. Test: tests/ops/test_choose_budget.py
#pragma once
#include "ddtree/budget_state.cuh"
#include "ddtree/order.cuh"
#include "ddtree/round.cuh"

namespace ddtree {

// exp of a log-probability; see `exponential` of graph/budget.py.
DEVICE double exponential(double x) {
    constexpr double terms[] = {1. / 6227020800., 1. / 479001600., 1. / 39916800., 1. / 3628800., 1. / 362880., 1. / 40320.,
                                1. / 5040., 1. / 720., 1. / 120., 1. / 24., 1. / 6., 1. / 2., 1., 1.};   // 1 / n!
    constexpr double round = 0x1.8p52;   // adding and subtracting it rounds to a whole number
    if (!(x >= -700.)) return 0.;
    x = x < 0. ? x : 0.;
    const double whole = __dadd_rn(__dadd_rn(__dmul_rn(x, 1.4426950408889634), round), -round);
    const double high = __dadd_rn(x, -__dmul_rn(whole, 0.6931471803691238));
    const double rest = __dadd_rn(high, -__dmul_rn(whole, 1.9082149292705877e-10));
    double total = terms[0];
#pragma unroll
    for (int n = 1; n < 14; ++n) total = __dadd_rn(__dmul_rn(total, rest), terms[n]);
    return __dmul_rn(total, bitcast<double>(u64(1023 + int(whole)) << 52));
}

// Index of the first thread, of those that are `in`, with the largest x; for all threads of the block.
template <int THREADS>
DEVICE int first_largest(double x, bool in) {
    SHARED_ARRAY(int, first, 1);
    const u64 key = in ? order_bits(x) : 0, largest = block_max<THREADS>(key);
    if (threadIdx.x == 0) first[0] = THREADS;
    __syncthreads();
    if (in && key == largest) atomicMin(first, int(threadIdx.x));
    __syncthreads();
    const int found = first[0];
    __syncthreads();   // the word is free for the next call
    return found;
}

// What the probability of a path is multiplied by, for each of its depths: [0] is 1.
template <int DEPTHS>
DEVICE void calibrate(const BudgetSlot<DEPTHS>& slot, double* factor) {
    factor[0] = 1.;
#pragma unroll 1
    for (int d = 0; d < DEPTHS; ++d)
        factor[d + 1] = __dmul_rn(factor[d], slot.ratio[d]);
}

// How many of a slot's nodes come before one of another slot: keys above its own, or equal ones too. A row of keys falls, and
// ends with 0 where there is no node.
DEVICE int before(const u64* row, int nodes, u64 key, bool equal) {
    int low = 1, high = nodes;
#pragma unroll 1
    while (low < high) {
        const int middle = (low + high) / 2;
        const u64 theirs = row[middle];
        if (theirs > key || (equal && theirs == key)) low = middle + 1;
        else high = middle;
    }
    return low - 1;
}

// Place of a node in the order in which nodes join the round: by the least probability on the way to it, then by slot.
DEVICE int place_of(const u64* least, int active, int nodes, int at) {
    const int mine = at / nodes;
    int place = at % nodes - 1;   // a slot's own nodes are in order already
#pragma unroll 1
    for (int other = 0; other < active; ++other)
        if (other != mine) place += before(least + other * nodes, nodes, least[at], other < mine);
    return place;
}

// A node's probability as an integer of the same order, plus 1; 0 where there is no node. Slow fp64 units compare nothing.
template <class Config>
struct ChooseShared {
    u64 key[Config::sequences * Config::nodes], least[Config::sequences * Config::nodes];
    double factor[Config::sequences * (Config::depths + 1)], sum[64];
    int place[Config::sequences * Config::nodes], size[Config::sequences];
};

// How many nodes pay best: sum[n] is the probability of the first n + 1 nodes. See `_best` of graph/budget.py.
template <class Config>
DEVICE int best_size(const double* costs, const double* sum, int active, int total, double plain) {
    const int n = threadIdx.x;
    const bool in = n <= total;
    double expected = 0., ms = 0., rate = 0.;
    if (in) {
        const int bucket = Config::buckets::index(active + n);
        expected = __dadd_rn(double(active), n > 0 ? sum[n - 1] : 0.);
        ms = __dadd_rn(costs[bucket], costs[Config::capacities]);
        rate = __dmul_rn(expected, costs[Config::capacities + 1 + bucket]);
    }
    const double earned = __dmul_rn(expected, plain), spent = __dmul_rn(ms, double(active));
    const int best = first_largest<Config::threads>(rate, in);
    const bool pays = __syncthreads_or(n == best && earned > spent);
    return pays ? best : first_largest<Config::threads>(__dadd_rn(earned, -spent), in);
}

template <class Config>
DEVICE void choose_budget(const int* sequences, const int* slots, const double* costs, const double* node_score,
                          const int* node_depth, int* count, BudgetStateOf<Config>* state) {
    constexpr int nodes = Config::nodes, depths = Config::depths, threads = Config::threads, most = 64;
    static_assert(nodes <= most && threads > most, "a thread for each size");
    static_assert(sizeof(ChooseShared<Config>) == Config::smem, "what the launch gives");
    DYN_SMEM(memory);
    auto& [key, least, factor, sum, place, size] = *reinterpret_cast<ChooseShared<Config>*>(memory);
    pdl_launch_dependents();
    pdl_wait();
    const int thread = threadIdx.x, active = *sequences, entries = active * nodes;
    const double plain = costs[Config::buckets::index(active)];
    const bool draft = state->draft;
    int total = 0;
#pragma unroll 1
    for (int i = 0; draft && i < active; ++i) total += count[slots[i]] - 1;
    total = min(total, most - active);

#pragma unroll 1
    for (int i = thread; i < active; i += threads) {
        size[i] = 0;
        calibrate(state->slot[slots[i]], factor + i * (depths + 1));
#pragma unroll 1
        for (int d = 0; d <= depths; ++d) state->slot[slots[i]].factor[d] = factor[i * (depths + 1) + d];
    }
    if (thread < most) sum[thread] = 0.;
    __syncthreads();
#pragma unroll 1
    for (int at = thread; at < entries; at += threads) {
        const int i = at / nodes, n = at % nodes, slot = slots[i], node = slot * nodes + n;
        key[at] = 0;
        if (!draft || n == 0 || n >= count[slot]) continue;
        const double p = __dmul_rn(exponential(node_score[node]), factor[i * (depths + 1) + node_depth[node]]);
        key[at] = bitcast<u64>(p < 1. ? p : 1.) + 1;
    }
    __syncthreads();
#pragma unroll 1
    for (int at = thread; at < entries; at += threads) {
        u64 smallest = key[at];
#pragma unroll 4
        for (int back = at % nodes - 1; back > 0; --back) smallest = min(smallest, key[at - back]);
        least[at] = smallest;
    }
    __syncthreads();
#pragma unroll 1
    for (int at = thread; at < entries; at += threads) {
        place[at] = key[at] == 0 ? most : place_of(least, active, nodes, at);
        if (place[at] < total) sum[place[at]] = bitcast<double>(key[at] - 1);
    }
    __syncthreads();
#pragma unroll 1
    for (int distance = 1; distance < most; distance *= 2) {   // sums of the first 1, 2, ... nodes
        const double before = thread < most && thread >= distance ? sum[thread - distance] : 0.;
        __syncthreads();
        if (thread < most) sum[thread] = __dadd_rn(sum[thread], before);
        __syncthreads();
    }
    const int taken = best_size<Config>(costs, sum, active, total, plain);
#pragma unroll 1
    for (int at = thread; at < entries; at += threads)
        if (place[at] < taken) atomicAdd(&size[at / nodes], 1);
    __syncthreads();

#pragma unroll 1
    for (int i = thread; i < active; i += threads) {
        const int slot = slots[i];
        if (draft) state->slot[slot].full = count[slot], state->slot[slot].walk = 1;
        count[slot] = draft ? 1 + size[i] : 1;
    }
    if (thread == 0) {
        const int rows = draft ? active + taken : active, bucket = Config::buckets::index(rows);
        state->rows = rows;
        state->bucket = bucket;
        state->ms = draft ? __dadd_rn(costs[bucket], costs[Config::capacities]) : plain;
        state->expected = __dadd_rn(double(active), draft && taken > 0 ? sum[taken - 1] : 0.);
        state->waited = draft ? 0 : state->waited + 1;
        state->drafted = draft;
        state->before = state->lost;
    }
}

// Follows one slot's last tree by its new tokens; all lanes of a warp together. A node without children says nothing.
template <class Config>
DEVICE void follow(const int* node_token, const int* node_parent, const int* node_depth, const double* node_score,
                   const int* emitted, int length, BudgetSlot<Config::depths>* slot) {
    constexpr u32 all = 0xffffffffu;
    const int lane = threadIdx.x % 32;
    int walk = slot->walk - 1;
    int token[2], parent[2];
    double score[2];
    for (int half = 0; half < 2; ++half) {
        const int node = lane + 32 * half;
        const bool in = node < slot->full;
        token[half] = in ? node_token[node] : -1;
        parent[half] = in ? node_parent[node] : -1;
        score[half] = in ? node_score[node] : 0.;
    }
#pragma unroll 1
    for (int i = 0; i < length && walk >= 0; ++i) {
        const double from = node_score[walk];
        const int depth = node_depth[walk];
        const bool child[2] = {parent[0] == walk, parent[1] == walk};
        double mass = __dadd_rn(child[0] ? exponential(__dadd_rn(score[0], -from)) : 0., child[1] ? exponential(__dadd_rn(score[1], -from)) : 0.);
        for (int distance = 16; distance > 0; distance /= 2) mass = __dadd_rn(mass, __shfl_xor_sync(all, mass, distance));
        const u32 low = __ballot_sync(all, child[0] && token[0] == emitted[i]), high = __ballot_sync(all, child[1] && token[1] == emitted[i]);
        const bool any = __any_sync(all, child[0] || child[1]);
        walk = low ? __ffs(low) - 1 : high ? 31 + __ffs(high) : -1;
        if (any && lane == 0) {
            slot->hits[depth] = __dadd_rn(__dmul_rn(kDecay, slot->hits[depth]), walk >= 0 ? 1. : 0.);
            slot->mass[depth] = __dadd_rn(__dmul_rn(kDecay, slot->mass[depth]), mass);
            slot->ratio[depth] = __dadd_rn(kPrior, slot->hits[depth]) / __dadd_rn(kPrior, slot->mass[depth]);
        }
    }
    __syncwarp();
    if (lane == 0) slot->walk = walk + 1;
}

template <class Config>
DEVICE void settle_budget(const int* sequences, const int* slots, const double* costs, const int* node_token,
                          const int* node_parent, const int* node_depth, const double* node_score,
                          const int* emitted, const int* length, BudgetStateOf<Config>* state) {
    constexpr int nodes = Config::nodes;
    pdl_launch_dependents();
    pdl_wait();
    const int active = *sequences;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < active; i += Config::threads / 32) {
        const int slot = slots[i], row = slot * nodes;
        follow<Config>(node_token + row, node_parent + row, node_depth + row, node_score + row,
                       emitted + slot * (Config::depths + 1), length[slot], &state->slot[slot]);
    }
    if (threadIdx.x != 0) return;
    const double plain = costs[Config::buckets::index(active)];
    double lost = state->lost;
    if (state->draft) {
        int made = 0;
#pragma unroll 1
        for (int i = 0; i < active; ++i) made += length[slots[i]];
        lost = __dadd_rn(lost, __dadd_rn(state->ms / plain, -(double(made) / double(active))));
        lost = lost > 0. ? lost < kPatience ? lost : kPatience : 0.;
        state->lost = lost;
    }
    const int rounds = state->waited + 1;   // with the next one
    const bool probe = rounds >= kProbe && __dmul_rn(double(rounds), plain) >= __dmul_rn(kPrice, costs[Config::capacities]);
    state->draft = lost < kPatience || probe;
}

}  // namespace ddtree
