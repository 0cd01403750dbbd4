// y[r] = W x[r] for a few rows or many, on tensor cores; every weight is read once per group of rows.
//
//   weight  [batch][tiles][steps][half][lane][8] bf16: W [out, inner] of each batch in 16-row tiles and 32-column steps, zeros
//           where either runs past W (templates/product.py packs it). A step of a tile is two A fragments of mma.m16n8k16:
//           lane 4 g + t holds columns 8 t + 4 half .. 8 t + 4 half + 3 of rows g and g + 8
//   x, y    row r of batch b at x + r x_stride + b x_batch, alike for y; y bf16 (rounded once) or float
//   grid    (groups of rows, row blocks x split, batch); a block takes 16 m_tiles team weight rows and 8 n_tiles rows of x
//
// Weights stand on the M side of the mma and rows of x on the N side: columns of an mma are independent, so a row's bits do
// not depend on its company. A lane's fragments are 16 contiguous bytes in both operands (inside a step both sides permute
// the columns alike). Weights come by bulk copies into a ring of each warp, asked for before the kernels before this one have
// ended. The warps of a team work on the same columns for other weight rows: with many rows of x they share a ring of x, so
// that x is read from L2 once for all their weights; with few, each lane loads its pieces of x into registers, a bite ahead.
//
// Order of the sum, a property of the weight: `slices` equal chains of ascending steps, added in fp32 as a balanced binary
// tree. Slices lie side by side in time (`sequential`), over teams (`warps`) and over blocks (`split`), and each such launch
// evaluates the same tree. The blocks of a split give their
// sums to each other through memory: each adds up its share of the outputs as soon as the data are there.
// PTX ISA: warp-level matrix instructions, cp.async, cp.async.bulk. Test: tests/ops/test_linear.py
#pragma once
#include "ddtree/domain.cuh"

namespace ddtree {

// Config: the constants of templates/product.py by the same names, Out (bf16 or float), and domain.
template <class Config>
struct Plan {
    static constexpr int kBlockTiles = Config::m_tiles * Config::team;
    static constexpr int kRows = 16 * kBlockTiles;       // weight rows of a block
    static constexpr int kTokens = 8 * Config::n_tiles;  // rows of x of a block
    static constexpr int kThreads = 32 * Config::team * Config::warps;
    static constexpr int kTiles = (Config::out + 15) / 16;
    static constexpr int kRowBlocks = (kTiles + kBlockTiles - 1) / kBlockTiles;
    static constexpr int kChain = Config::steps / Config::slices;  // steps of a slice
    static constexpr int kSteps = kChain * Config::sequential;     // steps of a warp
    static constexpr int kBites = kSteps / Config::bite;
    static constexpr int kLevels = Config::sequential == 1 ? 0 : Config::sequential == 2 ? 1 : Config::sequential == 4 ? 2 : 3;
    static constexpr int kPiece = 16 * 32;                         // bytes, 16 a lane
    static constexpr int kWeights = Config::m_tiles * Config::bite * 2 * kPiece;   // bytes of a warp's bite
    static constexpr int kX = Config::n_tiles * Config::bite * kPiece;             // bytes of a team's bite
    static constexpr int kWeightRing = Config::stages * kWeights, kXRing = Config::x_stages * kX;
    static constexpr int kXRings = kThreads / 32 * kWeightRing;                    // offset of the first ring of x
    static constexpr int kRings = kXRings + Config::warps * kXRing;
    static constexpr int kPitch = kRows + 4;  // floats of a token's sums; the four keep the fragments' stores free of conflicts
    static constexpr int kSums = Config::warps * kTokens * kPitch * 4;             // bytes
    // Offset of the mbarriers, behind all else: they stay barriers to the end. Sums in their place were seen to change when the
    // GPU switched to another process.
    static constexpr int kBars = kRings > kSums ? kRings : kSums;
    static_assert(kChain * Config::slices == Config::steps && 32 * Config::steps >= Config::inner, "whole slices");
    static_assert(Config::warps * Config::sequential * Config::split == Config::slices, "every slice once");
    static_assert((Config::slices & (Config::slices - 1)) == 0 && Config::sequential <= 8, "a balanced tree");
    static_assert(kChain % Config::bite == 0, "whole bites");
    static_assert(Config::x_stages != 1, "none: x in registers; two or more: shared");
    static_assert(Config::inner % 8 == 0 && Config::x_stride % 8 == 0 && Config::x_batch % 8 == 0, "16-byte pieces of x");
    static_assert(Config::out % 4 == 0 && Config::y_stride % 4 == 0 && Config::y_batch % 4 == 0, "four values a store");
};

// term(at) + ... + term(at + Count - 1) as a balanced tree: ((0 + 1) + (2 + 3)) + ...
template <int Count, class Term>
DEVICE float4 tree_sum(const Term& term, int at = 0) {
    if constexpr (Count == 1) {
        return term(at);
    } else {
        const float4 a = tree_sum<Count / 2>(term, at), b = tree_sum<Count / 2>(term, at + Count / 2);
        return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
}

// Calls f(m, n, i) for every value of a thread's fragments.
template <class Config, class F>
DEVICE void for_fragments(const F& f) {
#pragma unroll
    for (int m = 0; m < Config::m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < Config::n_tiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) f(m, n, i);
}

// A warp's ring of weights.
template <class Config>
struct WeightRing {
    using P = Plan<Config>;
    const bf16* weight;  // the batch's matrix at the warp's first step
    int tile, last;      // the warp's first, and the last of W
    u8* slots;
    u32 bars;            // an mbarrier a slot
    u64 policy;
    int slot = 0;
    u32 parity = 0;

    // By one lane. A tile past the end of W is the last one again; its sums are dropped.
    DEVICE void ask(int bite, int to) const {
        if (bite >= P::kBites) return;
        const u32 bar = bars + 8 * to, smem = smem_u32(slots) + to * P::kWeights;
        mbar_arrive_expect_tx(bar, P::kWeights);
#pragma unroll
        for (int m = 0; m < Config::m_tiles; ++m)
            bulk_load(smem + m * Config::bite * 2 * P::kPiece,
                      weight + (size_t(min(tile + m, last)) * Config::steps + bite * Config::bite) * 512,
                      Config::bite * 2 * P::kPiece, bar, policy);
    }

    // All lanes: before anything else, and before pdl_wait(), since nobody writes weights.
    DEVICE void start() const {
        if (elect_one()) {
            for (int s = 0; s < Config::stages; ++s) mbar_init(bars + 8 * s, 1);
            mbar_fence_init();
            for (int s = 0; s < Config::stages; ++s) ask(s, s);
        }
        __syncwarp();
    }

    DEVICE const u8* wait() const {
        mbar_wait(bars + 8 * slot, parity);
        return slots + slot * P::kWeights;
    }

    // The bite is used: its slot takes another.
    DEVICE void next(int bite) {
        __syncwarp();
        if (elect_one()) ask(bite + Config::stages, slot);
        if (++slot == Config::stages) slot = 0, parity ^= 1;
    }
};

// Rows of x in bites of the warp's steps, as the lane needs them: 16 bytes of its row of each eight.
template <class Config>
struct RowsOfX {
    using P = Plan<Config>;
    const bf16* x;   // the lane's columns of its row of the first eight, at the warp's first step
    u8* ring;        // of the team
    int team, member;
    int live;        // rows of the block in use
    int columns;     // columns of W from the lane's first one on

    DEVICE const bf16* at(int n, int step) const { return x + size_t(n) * 8 * Config::x_stride + step * 32; }
    DEVICE bool present(int n, int step) const {
        return 8 * n + int(threadIdx.x % 32 / 4) < live && step * 32 < columns;
    }

    // Into the team's ring; a lane of every warp of the team does its part.
    DEVICE void fetch(int bite, int slot) const {
        constexpr int pieces = Config::bite * Config::n_tiles;
        if (bite < P::kBites) {
#pragma unroll
            for (int first = 0; first < pieces; first += Config::team) {
                const int piece = first + member, step = bite * Config::bite + piece / Config::n_tiles, n = piece % Config::n_tiles;
                if (pieces % Config::team == 0 || piece < pieces)
                    cp_async16(smem_u32(ring + slot * P::kX + piece * P::kPiece + threadIdx.x % 32 * 16), at(n, step), present(n, step));
            }
        }
        cp_async_commit();
    }

    DEVICE void wait() const {   // the oldest bite in flight is here for the team, and its predecessor is used
        cp_async_wait<Config::x_stages - 2>();
        if constexpr (Config::team == 1) __syncwarp();
        else bar_sync(1 + team, 32 * Config::team);
    }

    DEVICE void load(int bite, uint4 (&pieces)[Config::bite][Config::n_tiles]) const {
#pragma unroll
        for (int s = 0; s < Config::bite; ++s)
#pragma unroll
            for (int n = 0; n < Config::n_tiles; ++n) {
                const int step = bite * Config::bite + s;
                pieces[s][n] = bite < P::kBites && present(n, step) ? load16_coherent(at(n, step)) : make_uint4(0, 0, 0, 0);
            }
    }
};

// acc += the products of a bite, of which piece(step, n) is x
template <class Config, class Piece>
DEVICE void multiply(const u8* weights, const Piece& piece, float (&acc)[Config::m_tiles][Config::n_tiles][4]) {
    using P = Plan<Config>;
#pragma unroll
    for (int s = 0; s < Config::bite; ++s) {
        uint4 b[Config::n_tiles];
#pragma unroll
        for (int n = 0; n < Config::n_tiles; ++n) b[n] = piece(s, n);
#pragma unroll
        for (int m = 0; m < Config::m_tiles; ++m) {
            const u8* const from = weights + (m * Config::bite + s) * 2 * P::kPiece + threadIdx.x % 32 * 16;
            const uint4 low = load16(from), high = load16(from + P::kPiece);
            const u32 first[4] = {low.x, low.y, low.z, low.w}, second[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
            for (int n = 0; n < Config::n_tiles; ++n) {
                const u32 left[2] = {b[n].x, b[n].y};
                mma_bf16_16816(acc[m][n], first, left);
            }
#pragma unroll
            for (int n = 0; n < Config::n_tiles; ++n) {
                const u32 right[2] = {b[n].z, b[n].w};
                mma_bf16_16816(acc[m][n], second, right);
            }
        }
    }
}

// sum = that of all slices of the warp, in fragments. Weights have been asked for, x may be read.
template <class Config>
DEVICE void sum_slices(WeightRing<Config>& weights, const RowsOfX<Config>& x, float (&sum)[Config::m_tiles][Config::n_tiles][4]) {
    using P = Plan<Config>;
    constexpr bool shared = Config::x_stages > 0;
    constexpr int ahead = shared ? Config::x_stages - 1 : 1;
    uint4 following[shared ? 1 : Config::bite][shared ? 1 : Config::n_tiles];
    if constexpr (shared) for (int b = 0; b < ahead; ++b) x.fetch(b, b);
    else x.load(0, following);
    float waiting[P::kLevels + 1][Config::m_tiles][Config::n_tiles][4];   // of 2^level slices, for as many on their right
    int bite = 0, slot = 0;
#pragma unroll 1
    for (int slice = 0; slice < Config::sequential; ++slice) {
        for_fragments<Config>([&](int m, int n, int i) { sum[m][n][i] = 0.f; });
#pragma unroll 1
        for (int end = bite + P::kChain / Config::bite; bite < end; ++bite) {
            if constexpr (shared) {
                x.wait();
                x.fetch(bite + ahead, slot == 0 ? ahead : slot - 1);
                const u8* const pieces = x.ring + slot * P::kX + threadIdx.x % 32 * 16;
                multiply<Config>(weights.wait(), [&](int s, int n) { return load16(pieces + (s * Config::n_tiles + n) * P::kPiece); }, sum);
                if (++slot == Config::x_stages) slot = 0;
            } else {
                uint4 pieces[Config::bite][Config::n_tiles];
#pragma unroll
                for (int s = 0; s < Config::bite; ++s)
#pragma unroll
                    for (int n = 0; n < Config::n_tiles; ++n) pieces[s][n] = following[s][n];
                x.load(bite + 1, following);
                multiply<Config>(weights.wait(), [&](int s, int n) { return pieces[s][n]; }, sum);
            }
            weights.next(bite);
        }
        // The ones at the end of `slice` say how many pairs it completes.
#pragma unroll
        for (int level = 0; level < P::kLevels; ++level) {
            if ((slice >> level & 1) == 0) {
                for_fragments<Config>([&](int m, int n, int i) { waiting[level][m][n][i] = sum[m][n][i]; });
                break;
            }
            for_fragments<Config>([&](int m, int n, int i) { sum[m][n][i] = waiting[level][m][n][i] + sum[m][n][i]; });
        }
    }
}

// Four weight rows of a token.
DEVICE void store_rows(bf16* y, float4 v) { *reinterpret_cast<uint2*>(y) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)); }
DEVICE void store_rows(float* y, float4 v) { *reinterpret_cast<float4*>(y) = v; }

// A share waits in memory until the block that adds it up takes it. Where nothing waits, all bits are set: a NaN that no sum is.
DEVICE void give(float* share, float4 v) {
    const auto bits = [](float x) { return min(bitcast<u32>(x), 0xfffffffeu); };
    store16_relaxed(share, make_uint4(bits(v.x), bits(v.y), bits(v.z), bits(v.w)));
}

// The sum over all parts, of which `own` is one. Leaves nothing behind.
template <int SPLIT>
DEVICE float4 take(float* shares, int stride, int part, float4 own) {
    uint4 v[SPLIT];
    for (bool missing = true; missing;) {
        missing = false;
#pragma unroll
        for (int b = 0; b < SPLIT; ++b) v[b] = b == part ? bitcast<uint4>(own) : load16_relaxed(shares + b * stride);
#pragma unroll
        for (int b = 0; b < SPLIT; ++b)
            missing |= b != part && max(max(v[b].x, v[b].y), max(v[b].z, v[b].w)) == 0xffffffffu;
    }
#pragma unroll
    for (int b = 0; b < SPLIT; ++b)
        if (b != part) store16_relaxed(shares + b * stride, make_uint4(0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu));
    return tree_sum<SPLIT>([&](int b) { return bitcast<float4>(v[b]); });
}

// Each block calls it once, with all threads. When Config::split > 1, all blocks are resident together, and they meet in
//   partial  [blocks / split][split][tokens][rows of the block] float, all bits set between launches
// Several products of one inner size may share a launch: blocks from `first_block` on, along y, are this one's, and its weight has
// `out` rows instead of Config::out.
template <class Config>
DEVICE void product(const bf16* weight, const bf16* x, const Rows* rows, typename Config::Out* y, float* partial = nullptr,
                    int first_block = 0, int out = Config::out, int y_stride = Config::y_stride) {
    using P = Plan<Config>;
    DYN_SMEM(smem);
    pdl_launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int team = warp / Config::team, member = warp % Config::team;
    const int first = blockIdx.x * P::kTokens, batch = blockIdx.z;
    const int row_block = (blockIdx.y - first_block) / Config::split, part = (blockIdx.y - first_block) % Config::split;
    const int begin = row_block * P::kRows, step = (part * Config::warps + team) * P::kSteps;
    // The first group asks for weights before it waits for the earlier kernels: nobody writes weights.
    if (first > 0) {
        pdl_wait();
        if (live<Config::domain>(rows) <= first) return;
    }
    WeightRing<Config> weights{weight + (size_t(batch) * P::kTiles * Config::steps + step) * 512,
                               begin / 16 + member * Config::m_tiles, (out + 15) / 16 - 1, smem + warp * P::kWeightRing,
                               smem_u32(smem) + P::kBars + warp * Config::stages * 8, policy_evict_first()};
    weights.start();
    if (first == 0) pdl_wait();
    const int tokens = min(live<Config::domain>(rows) - first, P::kTokens);
    const RowsOfX<Config> rows_of_x{x + size_t(first + g) * Config::x_stride + batch * Config::x_batch + step * 32 + t * 8,
                                    smem + P::kXRings + team * P::kXRing, team, member, tokens, Config::inner - step * 32 - t * 8};
    float sum[Config::m_tiles][Config::n_tiles][4];
    sum_slices(weights, rows_of_x, sum);

    // ---- over the teams: sums[team][token][row] takes the place of the rings
    float* sums = reinterpret_cast<float*>(smem);
    __syncthreads();
    for_fragments<Config>([&](int m, int n, int i) {
        const int token = 8 * n + 2 * t + i % 2, row = 16 * (member * Config::m_tiles + m) + g + i / 2 * 8;
        sums[(team * P::kTokens + token) * P::kPitch + row] = sum[m][n][i];
    });
    __syncthreads();

    typename Config::Out* const to = y + size_t(first) * y_stride + batch * Config::y_batch + begin;
    constexpr int quads = P::kRows / 4;
    const auto own = [&](int token, int row) {
        return tree_sum<Config::warps>([&](int w) {
            return *reinterpret_cast<const float4*>(sums + (w * P::kTokens + token) * P::kPitch + row);
        });
    };
    if constexpr (Config::split == 1) {
        for (int e = threadIdx.x; e < tokens * quads; e += P::kThreads) {
            const int token = e / quads, row = e % quads * 4;
            if (begin + row < out) store_rows(to + token * y_stride + row, own(token, row));
        }
    } else {
        // ---- over the blocks: each adds up every split-th run of eight quads, and gives its sums of the others away
        const int item = (batch * P::kRowBlocks + first_block / Config::split + row_block) * gridDim.x + blockIdx.x;
        float* const shares = partial + size_t(item) * Config::split * P::kTokens * P::kRows;
        for (int e = threadIdx.x; e < tokens * quads; e += P::kThreads) {
            const int token = e / quads, row = e % quads * 4;
            if (e / 8 % Config::split != part) give(shares + (part * P::kTokens + token) * P::kRows + row, own(token, row));
        }
        for (int mine = threadIdx.x; mine < (tokens * quads + 8 * Config::split - 1) / (8 * Config::split) * 8; mine += P::kThreads) {
            const int e = (mine / 8 * Config::split + part) * 8 + mine % 8, token = e / quads, row = e % quads * 4;
            if (token >= tokens) continue;
            const float4 v = take<Config::split>(shares + token * P::kRows + row, P::kTokens * P::kRows, part, own(token, row));
            if (begin + row < out) store_rows(to + token * y_stride + row, v);
        }
    }
}

}  // namespace ddtree
