// Choice of experts: s = sigmoid(logit); the top_k of s + bias; gates = scale s / (sum of the chosen s + 1e-20).
// Generated rows have a launch that makes the logits too (route_decode.cuh).
//
//   logits   [rows][experts] float: router weight x, from a linear launch before this one
//   bias     [experts] float: selects, and is no part of the gates
//   ids      [rows][top_k] int, distinct, by falling s + bias; equal values take the lower id first, NaN scores come last
//   gates    [rows][top_k] float
//   grid     (rows), Config::warps warps a row
//
// Time is latency: each warp chooses among its experts, a few to a lane, then the first warp among the choices of all.
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

    // Removes the candidate of the highest key, of equal ones that of the lowest id; every lane gets its score.
    DEVICE int take(float& its_score, u32& its_key) {
        u32 best = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) best = max(best, key[i]);
        its_key = __reduce_max_sync(0xffffffffu, best);
        int lowest = 0x7fffffff;
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (key[i] == its_key) lowest = min(lowest, id[i]);
        const int winner = __reduce_min_sync(0xffffffffu, lowest);
        float mine = 0.f;
        bool here = false;
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (key[i] > 0 && id[i] == winner) mine = score[i], here = true, key[i] = 0;
        its_score = __shfl_sync(0xffffffffu, mine, __ffs(__ballot_sync(0xffffffffu, here)) - 1);
        return winner;
    }
};

// Of each warp's candidates its top_k, then of those the top_k of the row; `WARPS` warps take part, the whole block calls it.
template <class Config, int WARPS, int PER_LANE>
DEVICE void choose(Candidates<PER_LANE>& mine, int row, int* ids, float* gates) {
    static_assert(Config::top_k <= 32, "a lane keeps a slot");
    constexpr int kFinalists = WARPS * Config::top_k, kFinalistsPerLane = (kFinalists + 31) / 32;
    SHARED_ARRAY(u32, keys, kFinalists);
    SHARED_ARRAY(int, finalists, kFinalists);
    SHARED_ARRAY(float, scores, kFinalists);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp < WARPS)
#pragma unroll 1                  // little code: a warp fetches every instruction from afar
        for (int slot = 0; slot < Config::top_k; ++slot) {
            float score;
            u32 key;
            const int id = mine.take(score, key), at = warp * Config::top_k + slot;
            if (lane == 0) keys[at] = key, finalists[at] = id, scores[at] = score;
        }
    __syncthreads();
    if (warp > 0) return;
    Candidates<kFinalistsPerLane> all;
#pragma unroll
    for (int i = 0; i < kFinalistsPerLane; ++i) {
        const int at = i * 32 + lane;
        all.key[i] = at < kFinalists ? keys[at] : 0;
        all.id[i] = at < kFinalists ? finalists[at] : 0;
        all.score[i] = at < kFinalists ? scores[at] : 0.f;
    }
    float total = 0.f, s = 0.f;   // s: the score of slot `lane`
    int id = 0;
#pragma unroll 1
    for (int slot = 0; slot < Config::top_k; ++slot) {
        float score;
        u32 key;
        const int chosen = all.take(score, key);
        total += score;
        if (lane == slot) s = score, id = chosen;
    }
    if (lane >= Config::top_k) return;
    ids[row * Config::top_k + lane] = id;
    gates[row * Config::top_k + lane] = s / (total + 1e-20f) * Config::scale;
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
