// Attention over keys that several blocks have shared out: what each leaves behind, and how it becomes one row.
//
// A part is some of a query's keys. Of each part and query there is
//   sums   [part][queries][width] fp32   sum p v with p = 2^(s - peak), s the scaled score in base 2
//   stats  [part][queries] (peak, sum p)
// where a query is (row, head). Parts follow one another in position order and are merged in that order, so the bits
// depend on where the query's keys were cut and on nothing else. A part without visible keys has peak kNoPeak and zeros.
// Tests: tests/ops/test_mla_tree_attention.py, tests/ops/test_draft_attention.py
#pragma once
#include "ddtree/vec.cuh"

namespace ddtree {

constexpr float kNoPeak = -1e30f;   // finite, so that a difference of two is 0 and not NaN
constexpr int kMergeThreads = 128;

// Columns 4 v .. 4 v + 3 of one query: v of WIDTH / 4 vectors. sums and stats start at the query's first part.
template <int QUERIES, int WIDTH>
DEVICE void merge_parts(const float* sums, const float2* stats, int parts, int v, bf16* y) {
    float peak = kNoPeak, total = 0.f;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
    for (int part = 0; part < parts; ++part) {
        const float2 theirs = stats[size_t(part) * QUERIES];
        const float4 add = *reinterpret_cast<const float4*>(sums + size_t(part) * QUERIES * WIDTH + v * 4);
        const float highest = fmaxf(peak, theirs.x);
        const float keep = ex2(peak - highest), weight = ex2(theirs.x - highest);
        peak = highest;
        total = fmaf(theirs.y, weight, total * keep);
        sum.x = fmaf(add.x, weight, sum.x * keep);
        sum.y = fmaf(add.y, weight, sum.y * keep);
        sum.z = fmaf(add.z, weight, sum.z * keep);
        sum.w = fmaf(add.w, weight, sum.w * keep);
    }
    *reinterpret_cast<uint2*>(y + v * 4) =
        make_uint2(pack_bf16(sum.x / total, sum.y / total), pack_bf16(sum.z / total, sum.w / total));
}

}  // namespace ddtree
