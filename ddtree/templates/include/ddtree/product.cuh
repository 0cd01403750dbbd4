// y[r] = W x[r] for a few rows or many, on tensor cores; every weight is read once per group of rows.
//
//   weight  [batch][tiles][steps][half][lane][8] bf16: W [out, inner] of each batch in 16-row tiles and 32-column steps, zeros
//           where either runs past W (templates/product.py packs it). A step of a tile is two A fragments of mma.m16n8k16:
//           lane 4 g + t holds columns 8 t + 4 half .. 8 t + 4 half + 3 of rows g and g + 8
//   x, y    row r of batch b at x + r x_stride + b x_batch, alike for y; y bf16 (rounded once) or float
//   grid    (groups of rows, row blocks x split, batch); a block takes 16 m_tiles weight rows and 8 n_tiles rows of x
//
// Weights stand on the M side of the mma and rows of x on the N side: columns of an mma are independent, so a row's bits do
// not depend on its company. A lane's fragments are 16 contiguous bytes in both operands (inside a step both sides permute
// the columns alike), so every lane copies exactly what it will use, and the ring that hides the memory's latency needs no
// barrier.
//
// Order of the sum, a property of the weight: `slices` equal chains of ascending steps, added in fp32 as a balanced binary
// tree. Slices lie side by side in time (`sequential`), over warps and over blocks (`split`), and each such launch evaluates
// the same tree. Blocks of a split meet in `partial`; the last to arrive adds them up and sets the counter back.
// PTX ISA: warp-level matrix instructions, cp.async. Test: tests/ops/test_linear.py
#pragma once
#include "ddtree/domain.cuh"

namespace ddtree {

// Config: the constants of templates/product.py by the same names, Out (bf16 or float), and domain.
template <class Config>
struct Plan {
    static constexpr int kRows = 16 * Config::m_tiles;   // weight rows of a block
    static constexpr int kTokens = 8 * Config::n_tiles;  // rows of x of a block
    static constexpr int kTiles = (Config::out + 15) / 16;
    static constexpr int kRowBlocks = (kTiles + Config::m_tiles - 1) / Config::m_tiles;
    static constexpr int kChain = Config::steps / Config::slices;  // steps of a slice
    static constexpr int kSteps = kChain * Config::sequential;     // steps of a warp
    static constexpr int kPiece = 16 * 32;                         // bytes, 16 a lane
    static constexpr int kXPieces = 2 * Config::m_tiles;           // first piece of x in a stage
    static constexpr int kStage = (kXPieces + Config::n_tiles) * kPiece;
    static constexpr int kPitch = kRows + 4;  // floats of a token's sums; the four keep the fragments' stores free of conflicts
    static_assert(kChain * Config::slices == Config::steps && 32 * Config::steps >= Config::inner, "whole slices");
    static_assert(Config::warps * Config::sequential * Config::split == Config::slices, "one warp for every slice");
    static_assert((Config::slices & (Config::slices - 1)) == 0 && Config::sequential <= 2, "a balanced tree");
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

// What one lane streams through its ring: its pieces of the warp's steps. A stage of the ring is one step.
template <class Config>
struct Stream {
    using P = Plan<Config>;
    const bf16* weight;  // its piece of the block's first tile at the warp's first step
    const bf16* x;       // its columns of its row of the first eight
    u8* ring;            // its piece of stage 0
    int tiles;           // tiles of the block that lie in W
    int live;            // rows of the block in use
    int row;             // its row of the first eight
    int columns;         // columns of W from its first one on

    DEVICE void fetch_weight(int step, int stage) const {
        if (step >= P::kSteps) return;
#pragma unroll
        for (int piece = 0; piece < P::kXPieces; ++piece) {
            const int tile = piece / 2, half = piece % 2;
            cp_async16(smem_u32(ring + stage * P::kStage + piece * P::kPiece),
                       weight + (size_t(tile) * Config::steps + step) * 512 + half * 256, tile < tiles);
        }
    }

    DEVICE void fetch_x(int step, int stage) const {
        if (step >= P::kSteps) return;
#pragma unroll
        for (int n = 0; n < Config::n_tiles; ++n)
            if (8 * n < live)
                cp_async16(smem_u32(ring + stage * P::kStage + (P::kXPieces + n) * P::kPiece),
                           x + size_t(n) * 8 * Config::x_stride + step * 32, 8 * n + row < live && step * 32 < columns);
    }

    // acc += the products of the step in `stage`
    DEVICE void multiply(int stage, float (&acc)[Config::m_tiles][Config::n_tiles][4]) const {
        const u8* piece = ring + stage * P::kStage;
        uint4 b[Config::n_tiles];
#pragma unroll
        for (int n = 0; n < Config::n_tiles; ++n)
            if (8 * n < live) b[n] = load16(piece + (P::kXPieces + n) * P::kPiece);
#pragma unroll
        for (int i = 0; i < P::kXPieces; ++i) {
            const uint4 w = load16(piece + i * P::kPiece);
            const u32 a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int n = 0; n < Config::n_tiles; ++n)
                if (8 * n < live) {
                    const u32 columns_of_half[2] = {i % 2 ? b[n].z : b[n].x, i % 2 ? b[n].w : b[n].y};
                    mma_bf16_16816(acc[i / 2][n], a, columns_of_half);
                }
        }
    }
};

// Sums of all slices of the warp, in fragments. Both operands of the first stages have been asked for.
template <class Config>
DEVICE void sum_slices(const Stream<Config>& stream, float (&sum)[Config::m_tiles][Config::n_tiles][4]) {
    using P = Plan<Config>;
    int stage = 0, ahead = Config::stages;
#pragma unroll 1
    for (int slice = 0; slice < Config::sequential; ++slice) {
        float acc[Config::m_tiles][Config::n_tiles][4] = {};
#pragma unroll 1
        for (int step = 0; step < P::kChain; ++step) {
            cp_async_wait<Config::stages - 1>();
            stream.multiply(stage, acc);
            stream.fetch_weight(ahead, stage);
            stream.fetch_x(ahead, stage);
            cp_async_commit();
            ++ahead;
            if (++stage == Config::stages) stage = 0;
        }
#pragma unroll
        for (int m = 0; m < Config::m_tiles; ++m)
#pragma unroll
            for (int n = 0; n < Config::n_tiles; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[m][n][i] = slice == 0 ? acc[m][n][i] : sum[m][n][i] + acc[m][n][i];
    }
}

// Four weight rows of a token.
DEVICE void store_rows(bf16* y, float4 v) { *reinterpret_cast<uint2*>(y) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)); }
DEVICE void store_rows(float* y, float4 v) { *reinterpret_cast<float4*>(y) = v; }

// Each block calls it once, with all threads. `partial` and `arrived` are used when Config::split > 1 only:
//   partial  [blocks][tokens][rows of the block] float      arrived  [blocks / split] u32, all zero between launches
// Several products of one inner size may share a launch: blocks from `first_block` on, along y, are this one's, and its weight has
// `out` rows instead of Config::out.
template <class Config>
DEVICE void product(const bf16* weight, const bf16* x, const Rows* rows, typename Config::Out* y, float* partial = nullptr,
                    u32* arrived = nullptr, int first_block = 0, int out = Config::out, int y_stride = Config::y_stride) {
    using P = Plan<Config>;
    DYN_SMEM(smem);
    pdl_launch_dependents();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int first = blockIdx.x * P::kTokens, batch = blockIdx.z;
    const int row_block = (blockIdx.y - first_block) / Config::split, part = (blockIdx.y - first_block) % Config::split;
    const int tile = row_block * Config::m_tiles, step = (part * Config::warps + warp) * P::kSteps;
    // The first group asks for weights before it waits for the earlier kernels: nobody writes weights.
    if (first > 0) {
        pdl_wait();
        if (live<Config::domain>(rows) <= first) return;
    }
    Stream<Config> stream;
    stream.weight = weight + ((size_t(batch) * P::kTiles + tile) * Config::steps + step) * 512 + lane * 8;
    stream.x = x + size_t(first + g) * Config::x_stride + batch * Config::x_batch + step * 32 + t * 8;
    stream.ring = smem + warp * (Config::stages * P::kStage) + lane * 16;
    stream.tiles = (out + 15) / 16 - tile;
    stream.row = g;
    stream.columns = Config::inner - step * 32 - t * 8;
    for (int s = 0; s < Config::stages; ++s) stream.fetch_weight(s, s);
    if (first == 0) pdl_wait();
    stream.live = min(live<Config::domain>(rows) - first, P::kTokens);
    for (int s = 0; s < Config::stages; ++s) {
        stream.fetch_x(s, s);
        cp_async_commit();   // the first group of copies holds all weights so far
    }
    float sum[Config::m_tiles][Config::n_tiles][4];
    sum_slices(stream, sum);

    // ---- over the warps: sums[warp][token][row] takes the place of the rings
    float* sums = reinterpret_cast<float*>(smem);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < Config::m_tiles; ++m)
#pragma unroll
        for (int n = 0; n < Config::n_tiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sums[(warp * P::kTokens + 8 * n + 2 * t + i % 2) * P::kPitch + 16 * m + g + i / 2 * 8] = sum[m][n][i];
    __syncthreads();

    const int item = (batch * P::kRowBlocks + first_block / Config::split + row_block) * gridDim.x + blockIdx.x;
    typename Config::Out* const to = y + size_t(first) * y_stride + batch * Config::y_batch + tile * 16;
    float* const shares = partial + size_t(item) * Config::split * P::kTokens * P::kRows;
    constexpr int quads = P::kRows / 4;
    for (int e = threadIdx.x; e < stream.live * quads; e += 32 * Config::warps) {
        const int token = e / quads, row = e % quads * 4;
        const float4 v = tree_sum<Config::warps>([&](int w) {
            return *reinterpret_cast<const float4*>(sums + (w * P::kTokens + token) * P::kPitch + row);
        });
        if constexpr (Config::split > 1)
            *reinterpret_cast<float4*>(shares + (part * P::kTokens + token) * P::kRows + row) = v;
        else if (tile * 16 + row < out)
            store_rows(to + token * y_stride + row, v);
    }
    if constexpr (Config::split > 1) {
        // ---- over the blocks
        SHARED_ARRAY(u32, ticket, 1);
        __syncthreads();
        if (threadIdx.x == 0) ticket[0] = atom_add_acq_rel(arrived + item, 1);
        __syncthreads();
        if (ticket[0] != Config::split - 1) return;
        if (threadIdx.x == 0) arrived[item] = 0;
        for (int e = threadIdx.x; e < stream.live * quads; e += 32 * Config::warps) {
            const int token = e / quads, row = e % quads * 4;
            const float4 v = tree_sum<Config::split>([&](int b) {
                return bitcast<float4>(load16_relaxed(shares + (b * P::kTokens + token) * P::kRows + row));
            });
            if (tile * 16 + row < out) store_rows(to + token * y_stride + row, v);
        }
    }
}

}  // namespace ddtree
