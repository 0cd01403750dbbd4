// Choice of experts for up to 64 rows, product included, in one launch whose blocks are all resident (route.cuh has the rule).
//
//   weight   [tiles][steps][half][lane][8] bf16, in fragments of 16 experts x 32 columns (product.cuh)
//   sums     [rows][split][16 tiles] float: parts of the logits; of a tile's 16 places 2 g and 2 g + 1 are experts g and g + 8.
//            All ones, which no sum gives, wherever no part is: readers look at the data itself, and write the ones again
//   grid     (tiles x split, groups): a block has a tile, a part of K and every `groups`-th eight rows; block r chooses for row r
//
// A warp copies its weights, `chain` steps of a tile, before it waits for the kernels before this one: nobody writes weights.
// Row-invariant: experts stand on the M side of the mma and rows on the N side; the order of the sum follows from the
// weight's shape: halves of a step in two chains a warp, added, then the warps in order, then the parts in order.
// Test: tests/ops/test_route.py
#pragma once
#include "ddtree/panel.cuh"
#include "ddtree/route.cuh"

namespace ddtree {

struct RouteArgs {
    const bf16* weight;
    const float* bias;
    const bf16* x;   // [rows][hidden]
    const Rows* rows;
    float* sums;
    int* ids;
    float* gates;
};

template <class Config>
struct RouteDecode {
    static constexpr int kWarps = Config::warps, kSteps = (Config::hidden + 31) / 32, kChain = Config::chain, kStepBytes = 1024;
    static constexpr int kTiles = (Config::experts + 15) / 16, kPlaces = 16 * kTiles;
    static constexpr int kQuads = kPlaces / 4, kChoosers = (kQuads + 31) / 32 < kWarps ? (kQuads + 31) / 32 : kWarps;
    static constexpr int kQuadsPerLane = (kQuads + 32 * kChoosers - 1) / (32 * kChoosers);
    static_assert(kWarps * kChain * Config::split >= kSteps && Config::hidden % 8 == 0, "all of K, in 16-byte pieces");
    static_assert(kWarps * (kChain * kStepBytes + 1024 + 8) == Config::smem, "tiles/route.py computes the same");

    static DEVICE void run(const RouteArgs& a) {
        DYN_SMEM(smem);
        const int warp = warp_index(), lane = threadIdx.x % 32;
        const int tile = blockIdx.x / Config::split, part = blockIdx.x % Config::split;
        const int step = (part * kWarps + warp) * kChain, steps = tile < kTiles ? max(0, min(kChain, kSteps - step)) : 0;
        u8* const ring = smem + warp * (kChain * kStepBytes);
        float4* const places = reinterpret_cast<float4*>(smem + kWarps * (kChain * kStepBytes)) + lane;
        const u32 bar = smem_u32(smem + kWarps * (kChain * kStepBytes + 1024) + warp * 8);
        pdl_launch_dependents();
        if (elect_one()) {
            mbar_init(bar, 1);
            mbar_fence_init();
            mbar_arrive_expect_tx(bar, steps * kStepBytes);
            const bf16* const from = a.weight + (size_t(tile) * Config::steps + step) * (kStepBytes / 2);
            if (steps > 0) bulk_load(smem_u32(ring), from, steps * kStepBytes, bar, policy_evict_first());
        }
        __syncwarp();
        pdl_wait();
        const int live_rows = live<Config::domain>(a.rows);
        mbar_wait(bar, 0);
        if (tile < kTiles) multiply(a, ring, places, live_rows, step, steps);
        for (int row = blockIdx.y * gridDim.x + blockIdx.x; row < live_rows; row += gridDim.x * gridDim.y) {
            Candidates<4 * kQuadsPerLane> mine;
            if (warp < kChoosers) gather(mine, a.sums + size_t(row) * (Config::split * kPlaces), a.bias);
            choose<Config, kChoosers>(mine, row, a.ids, a.gates);
            __syncthreads();   // the finalists' places are free
        }
    }

private:
    // This lane's x of the warp's steps, of column g of eight rows; columns without a row repeat the last one.
    struct Columns {
        uint4 at[kChain];
    };
    static DEVICE Columns load_x(const bf16* x, int eight, int rows, int step, int steps) {
        const int lane = threadIdx.x % 32;
        const bf16* const from = x + size_t(min(8 * eight + lane / 4, rows - 1)) * Config::hidden;
        Columns made;
#pragma unroll
        for (int i = 0; i < kChain; ++i) {
            const int column = (step + i) * 32 + 8 * (lane % 4);
            made.at[i] = i < steps && column < Config::hidden ? load16(from + column) : make_uint4(0, 0, 0, 0);
        }
        return made;
    }

    // The block's part of the logits of 16 experts for all rows, eight at a time.
    static DEVICE void multiply(const RouteArgs& a, const u8* ring, float4* places, int rows, int step, int steps) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int tile = blockIdx.x / Config::split, part = blockIdx.x % Config::split;
        uint4 w[2 * kChain];
#pragma unroll
        for (int i = 0; i < 2 * kChain; ++i) w[i] = i / 2 < steps ? load16(ring + (i * 32 + lane) * 16) : make_uint4(0, 0, 0, 0);
        Columns b = load_x(a.x, blockIdx.y, rows, step, steps);
        int round = 0;
        for (int n = blockIdx.y; 8 * n < rows; n += gridDim.y, ++round) {
            const Columns next = load_x(a.x, n + gridDim.y, rows, step, steps);
            float sum[2][4] = {};
#pragma unroll
            for (int i = 0; i < kChain; ++i) {
                mma(sum[0], w[2 * i], b.at[i].x, b.at[i].y);
                mma(sum[1], w[2 * i + 1], b.at[i].z, b.at[i].w);
            }
            b = next;
            float4* const half = places + round % 2 * (kWarps * 32);   // written again two barriers later
            half[warp * 32] = as_float4(sum[0]) + as_float4(sum[1]);
            __syncthreads();
            if (warp != round % kWarps) continue;
            float4 total = half[0];
#pragma unroll
            for (int i = 1; i < kWarps; ++i) total = total + half[i * 32];
            const int row = 8 * n + 2 * t;
            float* const to = a.sums + (size_t(row) * Config::split + part) * kPlaces + 16 * tile + 2 * g;
            const uint4 v = bitcast<uint4>(total);
            if (row < rows) store8_relaxed(to, make_uint2(v.x, v.z));
            if (row + 1 < rows) store8_relaxed(to + Config::split * kPlaces, make_uint2(v.y, v.w));
        }
    }

    static DEVICE void mma(float (&sum)[4], uint4 w, u32 low, u32 high) {
        const u32 a[4] = {w.x, w.y, w.z, w.w}, b[2] = {low, high};
        mma_bf16_16816(sum, a, b);
    }

    // This lane's candidates of a row, once all parts are there: their sum in order.
    static DEVICE void gather(Candidates<4 * kQuadsPerLane>& mine, float* parts, const float* bias) {
#pragma unroll
        for (int i = 0; i < kQuadsPerLane; ++i) {
            const int place = 4 * (i * 32 * kChoosers + threadIdx.x);
            float4 logit = make_float4(0.f, 0.f, 0.f, 0.f);
            if (place < kPlaces) logit = await(parts + place);
            const float values[4] = {logit.x, logit.y, logit.z, logit.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int expert = place / 16 * 16 + place % 16 / 2 + j / 2 + j % 2 * 8;
                if (place < kPlaces && expert < Config::experts) mine.set(4 * i + j, expert, values[j], bias[expert]);
                else mine.clear(4 * i + j, expert);
            }
        }
    }

    static DEVICE float4 await(float* parts) {
        const uint4 empty = make_uint4(0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu);
        uint4 v[Config::split];
        for (bool missing = true; missing;) {
            missing = false;
#pragma unroll
            for (int i = 0; i < Config::split; ++i) v[i] = load16_relaxed(parts + i * kPlaces);
#pragma unroll
            for (int i = 0; i < Config::split; ++i) missing |= max(max(v[i].x, v[i].y), max(v[i].z, v[i].w)) == 0xffffffffu;
        }
        float4 sum = bitcast<float4>(v[0]);
        store16_relaxed(parts, empty);
#pragma unroll
        for (int i = 1; i < Config::split; ++i) {
            sum = sum + bitcast<float4>(v[i]);
            store16_relaxed(parts + i * kPlaces, empty);
        }
        return sum;
    }
};

}  // namespace ddtree
