// Absorbed MLA attention: a block's walk over keys in tiles of 32. mla_tree_attention.cuh says what for.
//
// Everything is computed transposed, S^T = K Q^T and O^T = V^T P^T: keys and value columns fill the 16 rows of an mma, and
// its eight columns are eight heads of one row (a *head tile*). So one row wastes nothing, and TILES head tiles (1, 2, 4 or
// 8: rows, or parts of a row of many heads) share every fragment of keys. Absent heads and rows compute garbage that nobody
// stores. One tile of keys:
//   s = (s0 + s1) + (s2 + s3), part j sums the 16-column steps j, j + 4, j + 8, ... in this order, one warp each
//   reference peak m: the largest score when a score passes it by more than kSlack, else as before; p = 2^(s - m), rounded
//   to bf16 as operand of the value mma's; O = O c + two mma's of 16 keys, where c, the correction for a new m, is mostly 1
//   sum of p: a thread has four keys of each tile, its sum runs over the tiles, and threads are added at the end
// None of this depends on TILES, so head tiles in any company have the same bits. A masked key has p = 0 exactly and a row of
// zeros (or of finite values) in shared memory. Memory past the last key may hold NaN; it is not read.
//
// Eight warps. Scores: four quarters of the columns x two halves, of the 8 head tiles or else of the tile's keys; queries stay
// in registers. Then warp t adds the quarters of head tile t and makes weights of them. Values: an eighth of the columns each.
// A tile of 8 head tiles takes 576 + 512 mma's, 272 ldmatrix and three barriers for 576 + 512 columns.
#pragma once
#include "ddtree/attention_merge.cuh"
#include "ddtree/rows.cuh"

namespace ddtree {

constexpr int kMlaThreads = 256;
constexpr int kTileKeys = 32;
constexpr float kSlack = 8.f;              // p is at most 2^8: the same relative precision, and corrections are rare

// Config: heads, latent, rope, rows (capacity of the step), most (head tiles of a block at most), scale_log2 (softmax scale
// times log2 e).
template <class Config>
struct Mla {
    static constexpr int key = Config::latent + Config::rope;
    static constexpr int steps = key / 16;                       // mma steps over the columns of a key
    static constexpr int quarter_steps = (steps + 3) / 4;
    static constexpr int value_tiles = Config::latent / 16 / 8;  // 16-column tiles of a warp
    static constexpr int queries = Config::rows * Config::heads;
    static constexpr int pitch = key * 2 + 16;                   // bytes of a key in shared memory: an odd number of 16, so
                                                                 // that eight rows of a matrix lie in different banks
    static constexpr u32 buffer_bytes = kTileKeys * pitch;
    static_assert(Config::latent % 128 == 0 && key % 16 == 0, "whole mma tiles");
};

DEVICE constexpr int quarters_stored(int tiles) { return tiles == 8 ? 3 : 4; }   // the fourth stays in its owner's registers

template <class Config>
struct MlaShared {
    unsigned char keys[2][Mla<Config>::buffer_bytes];
    float4 scores[Config::most * 2 * quarters_stored(Config::most)][32];   // D fragments; later a head tile's weights
    float factor[Config::most * 8];   // of O: its correction for a new peak
    u8 changed[8];                    // [head tile] whether a factor of its queries is not 1
    int last[8];                      // [head tile] the row's own position
    u8 path[kScratch];                // scratch slots of a row's ancestors, root first, itself last
};

// The rows that a block attends for, and which of their heads.
struct MlaQueries {
    const u16* order;   // row numbers, in shared memory; or null: rows from `first` on
    int first, count;
    int head;           // first head

    DEVICE int row(int member) const { return order ? order[min(member, count - 1)] : first + min(member, count - 1); }
};

template <class Config, int TILES>
struct MlaTiles {
    static constexpr int of_row = TILES < Config::head_tiles ? TILES : Config::head_tiles;
    static constexpr int rows = TILES / of_row;                  // of a block
    static constexpr int parts = Config::head_tiles / of_row;    // blocks for all heads of a row
    static constexpr int scored = TILES == 8 ? 4 : TILES;        // head tiles whose scores a warp computes
};

template <class Config, int TILES>
struct MlaSum {                                            // of one block's walk
    float values[Mla<Config>::value_tiles][TILES][4];      // O^T: a warp's columns x the queries
    float peak[2], total[2];                               // of the two queries that this lane weighs; warps below TILES
};

DEVICE int copied_key() { return opaque(threadIdx.x) / 8; }   // eight threads copy a key

// Where the keys of a walk lie. Looking them up takes two steps, find and row, so that nobody waits for the page table.
// Keys of positions from `end` on are absent.
template <class Config, bool MASKED>
struct PageKeys {   // committed positions. Not MASKED: all of them below every query
    static constexpr bool masked = MASKED;
    const bf16* pages;
    const int* const& table;
    int end;

    DEVICE int find(int tile) const { return table[u32(tile) / kPage]; }
    DEVICE const bf16* row(int tile, int found) const {
        return pages + size_t(u32(found * kPage + copied_key()) + u32(tile) % kPage) * Mla<Config>::key;
    }
};

template <class Config>
struct PathKeys {   // committed positions, then the scratch rows of a path
    static constexpr bool masked = true;
    const bf16 *pages, *scratch;
    const int* table;
    const u8* path;
    int committed, end;

    DEVICE int find(int tile) const {
        const int position = tile + copied_key();
        return position >= end ? 0 : position < committed ? table[u32(position) / kPage] : int(path[position - committed]);
    }
    DEVICE const bf16* row(int tile, int found) const {
        const int position = tile + copied_key();
        return position < committed ? pages + size_t(u32(found * kPage) + u32(position) % kPage) * Mla<Config>::key
                                    : scratch + size_t(u32(found)) * Mla<Config>::key;
    }
};

// This thread's share of the copy of a tile, in steps, so that they can stand between other instructions: many at once would
// hold up every other access to shared memory.
template <class Config>
struct MlaCopy {
    static constexpr int vectors = Mla<Config>::key / 8, steps = (vectors + 7) / 8;
    u32 to;
    const bf16* from;
    bool asked, valid;   // absent keys become zeros

    template <class Keys>
    DEVICE MlaCopy(MlaShared<Config>& shared, u32 buffer, const Keys& keys, int tile, int found) {
        const int lane = opaque(threadIdx.x) % 8 * 8;
        to = smem_u32(shared.keys) + buffer * Mla<Config>::buffer_bytes + copied_key() * Mla<Config>::pitch + lane * 2;
        from = keys.row(max(tile, 0), found) + lane;
        asked = tile >= 0;
        valid = !Keys::masked || tile + copied_key() < keys.end;
    }
    DEVICE void step(int i) const {
        if (asked && (vectors % 8 == 0 || i * 8 + opaque(threadIdx.x) % 8 < vectors)) cp_async16(to + i * 128, from + i * 64, valid);
    }
};

// ---- one tile of 32 keys -------------------------------------------------------------------------------------------------
// Of 8 head tiles a warp scores four, and the one that it weighs, its own, comes first.
template <int TILES>
DEVICE int scored_tile(int i, u32 thread) {
    const int warp = thread / 32;
    return TILES == 8 ? warp / 4 * 4 + ((warp ^ i) & 3) : i;
}

// The queries as B fragments: this warp's quarter of the columns.
template <class Config, int TILES>
DEVICE void load_queries(const bf16* q, const MlaQueries& queries,
                         u32 (&fragment)[MlaTiles<Config, TILES>::scored][Mla<Config>::quarter_steps][2]) {
    using M = Mla<Config>;
    using Tiles = MlaTiles<Config, TILES>;
    const u32 thread = opaque(threadIdx.x);
    const int lane = thread % 32, quarter = thread / 32 % 4;
#pragma unroll
    for (int i = 0; i < Tiles::scored; ++i) {
        const int tile = scored_tile<TILES>(i, thread), head = queries.head + tile % Tiles::of_row * 8 + lane / 4;
        const bf16* from = q + (size_t(queries.row(tile / Tiles::of_row)) * Config::heads + head) * M::key + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < M::quarter_steps; ++k) {
            const int step = 4 * k + quarter;
            const bool there = (M::steps % 4 == 0 || step < M::steps) && (Config::heads % 8 == 0 || head < Config::heads);
            fragment[i][k][0] = there ? *reinterpret_cast<const u32*>(from + step * 16) : 0;
            fragment[i][k][1] = there ? *reinterpret_cast<const u32*>(from + step * 16 + 8) : 0;
        }
    }
}

template <class Config, int TILES>
DEVICE float4& score_slot(MlaShared<Config>& shared, int tile, int half, int quarter, int lane) {
    return shared.scores[(tile * 2 + half) * quarters_stored(TILES) + quarter][lane];
}

// Leaves a quarter of every score in shared memory; what this warp will weigh itself stays in `own`. Meanwhile a later tile is
// asked for.
template <class Config, int TILES>
DEVICE void score_tile(MlaShared<Config>& shared, u32 keys,
                       const u32 (&query)[MlaTiles<Config, TILES>::scored][Mla<Config>::quarter_steps][2], float (&own)[2][4],
                       const MlaCopy<Config>& copy) {
    using M = Mla<Config>;
    constexpr int scored = MlaTiles<Config, TILES>::scored, passes = TILES == 8 ? 2 : 1;
    const u32 thread = opaque(threadIdx.x);
    const int lane = thread % 32, quarter = thread / 32 % 4;
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
        const int half = TILES == 8 ? pass : thread / 128;
        const u32 from = keys + (half * 16 + lane % 16) * M::pitch + lane / 16 * 16 + quarter * 32;
        float s[scored][4] = {};
#pragma unroll
        for (int k = 0; k < M::quarter_steps; ++k) {
            if (pass == 0) copy.step(k);
            if (M::steps % 4 != 0 && 4 * k + quarter >= M::steps) break;
            u32 key[4];
            ldmatrix_x4(key, from + k * 128);
#pragma unroll
            for (int i = 0; i < scored; ++i) mma_bf16_16816(s[i], key, query[i][k]);
        }
#pragma unroll
        for (int i = TILES == 8 ? 1 : 0; i < scored; ++i)
            score_slot<Config, TILES>(shared, scored_tile<TILES>(i, thread), half, TILES == 8 ? i - 1 : quarter, lane) =
                make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
        if constexpr (TILES == 8)
#pragma unroll
            for (int i = 0; i < 4; ++i) own[pass][i] = s[0][i];
    }
}

// Scores to weights, one head tile a warp. A lane has keys lane / 4 + 0, 8, 16, 24 of queries 2 (lane % 4) and the next.
template <class Config, int TILES, bool MASKED>
DEVICE void weigh_tile(MlaShared<Config>& shared, int begin, const float (&own)[2][4], MlaSum<Config, TILES>& sum) {
    const u32 thread = opaque(threadIdx.x);
    const int lane = thread % 32, tile = thread / 32;
    if (tile >= TILES) return;
    float p[2][4];
    const auto element = [](const float4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float4 part[quarters_stored(TILES)];
#pragma unroll
        for (int quarter = 0; quarter < quarters_stored(TILES); ++quarter)
            part[quarter] = score_slot<Config, TILES>(shared, tile, half, quarter, lane);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Of 8 head tiles, the parts are those of quarters own ^ 1, own ^ 2 and own ^ 3: the same sum of pairs.
            const float s = TILES == 8 ? (own[half][i] + element(part[0], i)) + (element(part[1], i) + element(part[2], i))
                                       : (element(part[0], i) + element(part[1], i)) +
                                             (element(part[2], i) + element(part[quarters_stored(TILES) - 1], i));
            const bool visible = !MASKED || begin + half * 16 + lane / 4 + i / 2 * 8 <= shared.last[tile];
            p[half][i] = visible ? s : kNoPeak;
        }
    }
    float highest[2], factor[2] = {1.f, 1.f};
    bool raised = false;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
        highest[odd] = fmaxf(fmaxf(p[0][odd], p[0][odd + 2]), fmaxf(p[1][odd], p[1][odd + 2]));
        raised |= highest[odd] * Config::scale_log2 > sum.peak[odd] + kSlack;
    }
    raised = __any_sync(0xffffffffu, raised);
    if (raised) {   // seldom but in a walk's first tile
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2)
                highest[odd] = fmaxf(highest[odd], __shfl_xor_sync(0xffffffffu, highest[odd], distance));
            const float before = sum.peak[odd], now = highest[odd] * Config::scale_log2;
            if (highest[odd] != kNoPeak && now > before + kSlack) {
                sum.peak[odd] = now;
                if (before != kNoPeak) factor[odd] = ex2(before - now);
            }
            if (lane < 4) shared.factor[tile * 8 + lane * 2 + odd] = factor[odd];
        }
        raised = __any_sync(0xffffffffu, factor[0] != 1.f || factor[1] != 1.f);
    }
    if (lane == 0) shared.changed[tile] = raised;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = ex2(fmaf(p[half][i], Config::scale_log2, -sum.peak[i % 2]));
            p[half][i] = MASKED && p[half][i] == kNoPeak ? 0.f : x;   // select: without visible keys there is no peak
        }
    __syncwarp();   // all lanes have read the scores: the weights take their place
    u32* weights = reinterpret_cast<u32*>(&shared.scores[tile * 2 * quarters_stored(TILES)]);
#pragma unroll
    for (int group = 0; group < 4; ++group)
        weights[group * 32 + lane] = pack_bf16(p[group / 2][group % 2 * 2], p[group / 2][group % 2 * 2 + 1]);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd)
        sum.total[odd] = fmaf(sum.total[odd], factor[odd], (p[0][odd] + p[0][odd + 2]) + (p[1][odd] + p[1][odd + 2]));
}

template <class Config, int TILES>
DEVICE void add_values(const MlaShared<Config>& shared, u32 keys, MlaSum<Config, TILES>& sum) {
    using M = Mla<Config>;
    const u32 thread = opaque(threadIdx.x);
    const int lane = thread % 32, warp = thread / 32;
    const uint2 changed = *reinterpret_cast<const uint2*>(shared.changed);
    if (changed.x | changed.y)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            if (((tile < 4 ? changed.x : changed.y) >> tile % 4 * 8 & 0xff) == 0) continue;   // its factors are old ones
            const float even = shared.factor[tile * 8 + lane % 4 * 2], odd = shared.factor[tile * 8 + lane % 4 * 2 + 1];
#pragma unroll
            for (int m = 0; m < M::value_tiles; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum.values[m][tile][i] *= i % 2 ? odd : even;
        }
    const u32 from = keys + (lane % 8 + lane / 16 * 8) * M::pitch + warp * M::value_tiles * 32 + lane / 8 % 2 * 16;
    constexpr u32 tile_bytes = 2 * quarters_stored(TILES) * sizeof(shared.scores[0]);
    const u32 weights = smem_u32(shared.scores) + lane % 16 * 16 + (TILES > 1 ? lane / 16 * tile_bytes : 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        u32 weight[TILES][2];   // B fragments of sixteen keys
        if constexpr (TILES == 1) {
            ldmatrix_x2_trans(weight[0], weights + half * 256);
        } else {
#pragma unroll
            for (int tile = 0; tile < TILES; tile += 2) {
                u32 two[4];
                ldmatrix_x4_trans(two, weights + tile * tile_bytes + half * 256);
                weight[tile][0] = two[0], weight[tile][1] = two[1];
                weight[tile + 1][0] = two[2], weight[tile + 1][1] = two[3];
            }
        }
#pragma unroll
        for (int m = 0; m < M::value_tiles; ++m) {
            u32 value[4];
            ldmatrix_x4_trans(value, from + half * 16 * M::pitch + m * 32);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) mma_bf16_16816(sum.values[m][tile], value, weight[tile]);
        }
    }
}

// ---- a walk over the keys of positions begin .. keys.end - 1; begin is a multiple of 32 -----------------------------------
// Tiles go to the two buffers in turn, a walk's first one to buffer 0; walks that are not MASKED have an even number of tiles.
// start_walk asks for the first tile; a barrier of it tells what `keys` needs to have been written. following(): where the next
// walk over pages of the same sequence begins, or -1; its first tile is asked for while the last one here is in work, so that
// it needs no start_walk. Keys are found a tile ahead of their copies.
template <class Config, class Keys>
DEVICE void start_walk(MlaShared<Config>& shared, const Keys& keys, int begin) {
    __syncthreads();   // the walk before is over
    const MlaCopy<Config> copy(shared, 0, keys, begin, keys.find(begin));
#pragma unroll
    for (int i = 0; i < copy.steps; ++i) copy.step(i);
    cp_async_commit();
}

template <class Config, int TILES, class Keys, class Following>
DEVICE void attend(MlaShared<Config>& shared, const u32 (&query)[MlaTiles<Config, TILES>::scored][Mla<Config>::quarter_steps][2],
                   const Keys& keys, int begin, Following following, MlaSum<Config, TILES>& sum) {
    int left = u32(keys.end - begin + kTileKeys - 1) / kTileKeys;   // tiles
    int next = left > 1 ? begin + kTileKeys : following(), found = keys.find(max(next, 0));
    sum = {};
    sum.peak[0] = sum.peak[1] = kNoPeak;
    for (; left > 0; --left, begin += kTileKeys) {
        cp_async_wait<0>();
        __syncthreads();   // the tile is there; scores, weights and the other buffer are free
        const u32 buffer = Keys::masked ? begin / kTileKeys % 2 : left % 2;
        const MlaCopy<Config> copy(shared, buffer ^ 1, keys, next, found);
        if (left > 1) next = left > 2 ? next + kTileKeys : following(), found = keys.find(max(next, 0));
        const u32 from = smem_u32(shared.keys[buffer]);
        float own[2][4];
        score_tile<Config, TILES>(shared, from, query, own, copy);
        cp_async_commit();
        __syncthreads();
        weigh_tile<Config, TILES, Keys::masked>(shared, begin, own, sum);
        __syncthreads();
        add_values<Config, TILES>(shared, from, sum);
    }
#pragma unroll
    for (int odd = 0; odd < 2; ++odd)
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2)
            sum.total[odd] += __shfl_xor_sync(0xffffffffu, sum.total[odd], distance);
}

// Calls store(tile, query, odd) for every query whose sums this thread holds, that exists and whose row is meant; query = row x
// heads + head.
template <class Config, int TILES, class Meant, class Store>
DEVICE void for_each_query(const MlaQueries& queries, Meant meant, Store store) {
    using Tiles = MlaTiles<Config, TILES>;
    const int lane = opaque(threadIdx.x) % 32;
    int first[Tiles::rows];   // -1: nothing to store
#pragma unroll
    for (int member = 0; member < Tiles::rows; ++member) {
        const int row = queries.row(member);
        first[member] = member < queries.count && meant(row) ? row * Config::heads : -1;
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int member = tile / Tiles::of_row;
            const int head = queries.head + tile % Tiles::of_row * 8 + lane % 4 * 2 + odd;
            const bool there = Config::heads == Config::head_tiles * 8 || head < Config::heads;
            if (there && first[member] >= 0) store(tile, first[member] + head, odd);
        }
}

}  // namespace ddtree
