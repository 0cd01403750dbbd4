// Choice of experts: s = sigmoid(logit); the top_k of s + bias; gates = scale s / (sum of the chosen s + 1e-20).
// Generated rows have a launch that makes the logits too (route_decode.cuh).
//
//   logits   [rows][experts] float: router weight x, from a linear launch before this one
//   bias     [experts] float: selects, and is no part of the gates
//   ids      [rows][top_k] int, distinct, by falling s + bias; equal values take the lower id first, NaN scores come last
//   gates    [rows][top_k] float
//   grid     (rows), Config::warps warps a row
//
// Time is latency: each warp chooses among its experts, a few to a lane; then every finalist counts those before it.
// A block sees one row only, so the row's company cannot matter. Everything in fp32: rounding could change the choice.
// Test: tests/ops/test_route.py
#pragma once
#include "ddtree/domain.cuh"

namespace ddtree {

// Grows with s + bias. 0 is no candidate, 1 is NaN, which only a NaN bias gives: a NaN score ranks as -inf.
DEVICE u32 rank_key(float score, float bias) {
    const float rank = score == score ? score + bias : bitcast<float>(0xff800000u);
    if (rank != rank) return 1;
    const u32 bits = bitcast<u32>(rank);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE float sigmoid(float x) {   // without overflow
    const float e = expf(-fabsf(x));
    return (x >= 0.f ? 1.f : e) / (1.f + e);
}

// Up to N candidates of a lane, and a choice among those of the warp.
template <int N>
struct Candidates {
    u32 key[N];
    int id[N];
    float score[N];

    DEVICE void set(int i, int expert, float logit, float bias) {
        id[i] = expert, score[i] = sigmoid(logit), key[i] = rank_key(score[i], bias);
    }
    DEVICE void clear(int i, int expert) { id[i] = expert, score[i] = 0.f, key[i] = 0; }

    // Removes the candidate of the highest key, of equal ones that of the lowest id; the lane that had it stores its score.
    DEVICE int take(u32& its_key, float* its_score) {
        u32 best = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) best = max(best, key[i]);
        its_key = __reduce_max_sync(0xffffffffu, best);
        int lowest = 0x7fffffff;
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (key[i] == its_key) lowest = min(lowest, id[i]);
        const int winner = __reduce_min_sync(0xffffffffu, lowest);
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (key[i] > 0 && id[i] == winner) *its_score = score[i], key[i] = 0;
        return winner;
    }
};

// Of each warp's candidates its top_k, then of those the top_k of the row, each by the number of better ones. `WARPS` warps take
// part, the whole block calls it.
template <class Config, int WARPS, int PER_LANE>
DEVICE void choose(Candidates<PER_LANE>& mine, int row, int* ids, float* gates) {
    static_assert(Config::top_k <= 32, "a thread for every finalist");
    constexpr int kFinalists = WARPS * Config::top_k;
    SHARED_ARRAY(u64, finalists, kFinalists);   // key, then low ids first; distinct but for those that are no candidates
    SHARED_ARRAY(float, scores, kFinalists);
    SHARED_ARRAY(int, winners, Config::top_k);   // finalists by rank
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    if (warp < WARPS)
#pragma unroll 1                  // little code: a warp fetches every instruction from afar
        for (int slot = 0; slot < Config::top_k; ++slot) {
            u32 key;
            const int at = warp * Config::top_k + slot, id = mine.take(key, scores + at);
            if (lane == 0) finalists[at] = u64(key) << 32 | ~u32(id);
        }
    __syncthreads();
    if (thread < kFinalists) {
        const u64 key = finalists[thread];
        int rank = 0;
#pragma unroll 8
        for (int i = 0; i < kFinalists; ++i) rank += finalists[i] > key;
        if (rank < Config::top_k) winners[rank] = thread;
    }
    __syncthreads();
    if (thread >= Config::top_k) return;
    float total = 0.f;
#pragma unroll
    for (int slot = 0; slot < Config::top_k; ++slot) total += scores[winners[slot]];
    const int winner = winners[thread];
    ids[row * Config::top_k + thread] = int(~u32(finalists[winner]));
    gates[row * Config::top_k + thread] = scores[winner] / (total + 1e-20f) * Config::scale;
}

template <class Config>
DEVICE void route(const float* logits, const float* bias, const Rows* rows, int* ids, float* gates) {
    constexpr int kThreads = 32 * Config::warps, kPerLane = (Config::experts + kThreads - 1) / kThreads;
    const int row = blockIdx.x;
    pdl_launch_dependents();
    pdl_wait();
    if (row >= live<Config::domain>(rows)) return;
    Candidates<kPerLane> mine;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        const int expert = i * kThreads + threadIdx.x;
        if (expert < Config::experts) mine.set(i, expert, logits[size_t(row) * Config::experts + expert], bias[expert]);
        else mine.clear(i, expert);
    }
    choose<Config, Config::warps>(mine, row, ids, gates);
}

}  // namespace ddtree
