// Attention over keys that several blocks have shared out: what each leaves behind, and how it becomes one row.
//
// A part is some of a query's keys. Of each part and query there is
//   sums   [part][queries][width] bf16 or fp32   sum p v with p = 2^(s - peak), s the scaled score in base 2
//   stats  [part][queries] (peak, sum p)
// where a query is (row, head). A peak is a score near the largest: no p is above 2^kSlack.
// Parts follow one another in position order. Part i goes to strand i % 8, a strand is summed in this order, and the strands
// as a binary tree; so the bits depend on where the query's keys were cut and on nothing else. A part without visible keys
// has peak kNoPeak and zeros.
// Tests: tests/ops/test_mla_tree_attention.py, tests/ops/test_draft_attention.py
#pragma once
#include "ddtree/vec.cuh"

namespace ddtree {

constexpr float kNoPeak = -1e30f;   // finite, so that a difference of two is 0 and not NaN
constexpr int kMergeThreads = 256;  // a warp for each strand

template <class Sum>
struct RawVec8 {   // eight sums as they come from memory
    uint4 words[sizeof(Sum) / 2];

    DEVICE void load(const Sum* from) {
#pragma unroll
        for (int i = 0; i < int(sizeof(Sum) / 2); ++i) words[i] = load16(reinterpret_cast<const uint4*>(from) + i);
    }
    DEVICE Vec8 values() const {
        if constexpr (sizeof(Sum) == 2) return unpack8(words[0]);
        else return {{bitcast<float>(words[0].x), bitcast<float>(words[0].y), bitcast<float>(words[0].z), bitcast<float>(words[0].w),
                      bitcast<float>(words[1].x), bitcast<float>(words[1].y), bitcast<float>(words[1].z), bitcast<float>(words[1].w)}};
    }
};

// A block takes a query, or one of SLICES of its columns, so that few queries occupy more blocks.
template <int WIDTH, int SLICES>
struct Merge {
    static constexpr int strands = kMergeThreads / 32;
    static constexpr int columns = WIDTH / SLICES;
    static constexpr int pitch = columns + columns / 64 * 8;   // lanes that write together hit different banks
    static constexpr int floats = strands * pitch;             // of dynamic shared memory
    static_assert(WIDTH % (8 * SLICES) == 0, "whole vectors");
};

// One query or slice (blockIdx.y), by a block. sums and stats start at the query's first part; y is its row. column(i): where sum i
// belongs, for each slice a permutation of its columns.
template <int QUERIES, int WIDTH, int SLICES, class Sum, class Column>
DEVICE void merge_parts(const Sum* sums, const float2* stats, int parts, Column column, bf16* y) {
    using M = Merge<WIDTH, SLICES>;
    constexpr int strands = M::strands, vectors = M::columns / 8, mine = (vectors + 31) / 32;
    constexpr int ahead = mine * sizeof(Sum) == 2 ? 8 : 4;   // parts that a strand asks for at once
    DYN_SMEM(memory);
    float* const strand_sums = reinterpret_cast<float*>(memory);
    const int lane = threadIdx.x % 32, strand = threadIdx.x / 32, slice = blockIdx.y;
    sums += slice * M::columns;
    RawVec8<Sum> raw[ahead][mine];
    const auto fetch = [&](int first) {   // the next parts of the strand
#pragma unroll
        for (int k = 0; k < ahead; ++k)
#pragma unroll
            for (int v = 0; v < mine; ++v)
                if (first + k * strands < parts && lane + v * 32 < vectors)
                    raw[k][v].load(sums + size_t(first + k * strands) * QUERIES * WIDTH + (lane + v * 32) * 8);
    };
    fetch(strand);
    float peak = kNoPeak, total = 0.f;
    for (int part = lane; part < parts; part += 32) peak = fmaxf(peak, stats[size_t(part) * QUERIES].x);
    peak = warp_max(peak);
    for (int part = lane; part < parts; part += 32) {
        const float2 theirs = stats[size_t(part) * QUERIES];
        total = fmaf(theirs.y, ex2(theirs.x - peak), total);
    }
    total = warp_sum(total);
    Vec8 sum[mine] = {};
    for (int first = strand; first < parts; first += ahead * strands) {
#pragma unroll
        for (int k = 0; k < ahead; ++k) {
            if (first + k * strands >= parts) break;
            const float weight = ex2(stats[size_t(first + k * strands) * QUERIES].x - peak);
#pragma unroll
            for (int v = 0; v < mine; ++v)
                if (lane + v * 32 < vectors) sum[v] = fma(weight, raw[k][v].values(), sum[v]);
        }
        fetch(first + ahead * strands);
    }
#pragma unroll
    for (int v = 0; v < mine; ++v)
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (lane + v * 32 < vectors) {
                const int to = column(slice * M::columns + (lane + v * 32) * 8 + i) - slice * M::columns;
                strand_sums[strand * M::pitch + to + to / 64 * 8] = sum[v][i];
            }
    __syncthreads();
    for (int to = threadIdx.x; to < M::columns; to += kMergeThreads) {
        const float* s = strand_sums + to + to / 64 * 8;
        const float all = ((s[0] + s[M::pitch]) + (s[2 * M::pitch] + s[3 * M::pitch])) +
                          ((s[4 * M::pitch] + s[5 * M::pitch]) + (s[6 * M::pitch] + s[7 * M::pitch]));
        y[slice * M::columns + to] = to_bf16(all / total);
    }
}

}  // namespace ddtree
