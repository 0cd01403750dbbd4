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

// Where the key of each position lies. Positions from `end` on have none.
struct MlaKeys {
    const bf16 *pages, *scratch;
    const int* page_table;
    const u8* path;
    int committed;   // path[0] is the key of this position
    int end;
    int following;   // where the next walk over pages of the same sequence begins, or -1

    // In two steps, so that nobody waits for the page table: what is looked up early, and what is made of it.
    DEVICE int find(int position) const {
        return position >= committed ? int(path[position - committed]) : page_table[position / kPage];
    }
    template <int KEY>
    DEVICE const bf16* row(int position, int found) const {
        return position >= committed ? scratch + size_t(found) * KEY
                                     : pages + (size_t(found) * kPage + position % kPage) * KEY;
    }
};

template <class Config>
struct MlaShared {
    unsigned char keys[2][Mla<Config>::buffer_bytes];
    u64 arrived[2];                   // mbarriers: a tile's copies into each buffer
    float4 scores[Config::most * 2 * quarters_stored(Config::most)][32];   // D fragments; later a head tile's weights
    float factor[Config::most * 8];   // of O: its correction for a new peak
    u8 changed[8];                    // [head tile] whether a factor of its queries is not 1
    int last[8];                      // [head tile] the row's own position
    u8 path[kScratch];                // scratch slots of a row's ancestors, root first, itself last
    MlaKeys source;                   // of the walk: registers are scarce
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

struct MlaStream {   // of tiles through the two buffers
    u32 index;       // of the tile to be waited for next
    bool started;    // it is on its way already
};

DEVICE void init_stream(u64 (&arrived)[2]) {   // a block's barrier must follow
    if (threadIdx.x < 2) {
        mbar_init(smem_u32(&arrived[threadIdx.x]), 1);
        mbar_fence_init();
    }
}

constexpr int kKeysOfWarp = kTileKeys / (kMlaThreads / 32);   // copied by its first lanes, one each

DEVICE int copied_key() { return threadIdx.x / 32 * kKeysOfWarp + threadIdx.x % 32; }

// Bulk copies of the keys of a tile; `found` is what this lane's key was found by. Absent keys become zeros.
template <class Config>
DEVICE void load_keys(MlaShared<Config>& shared, u32 index, int tile, int found) {
    using M = Mla<Config>;
    constexpr u32 bytes = M::key * 2;
    const int lane = threadIdx.x % 32, key = copied_key();
    const MlaKeys& keys = shared.source;
    const int count = tile == keys.following ? kTileKeys : min(kTileKeys, keys.end - tile);
    const u32 bar = smem_u32(&shared.arrived[index % 2]);
    unsigned char* const to = shared.keys[index % 2];
    if (threadIdx.x == 0) mbar_arrive_expect_tx(bar, count * bytes);
    if (lane < kKeysOfWarp && key < count)
        bulk_load(smem_u32(to + key * M::pitch), keys.template row<M::key>(tile + key, found), bytes, bar);
    if (count == kTileKeys) return;
    for (int absent = max(count, threadIdx.x / 32 * kKeysOfWarp); absent < (threadIdx.x / 32 + 1) * kKeysOfWarp; ++absent)
        for (int vector = lane; vector < M::key / 8; vector += 32) store16(to + absent * M::pitch + vector * 16, make_uint4(0, 0, 0, 0));
    fence_async_proxy();   // before later copies into the same bytes
}

// ---- one tile of 32 keys -------------------------------------------------------------------------------------------------
// Of 8 head tiles a warp scores four, and the one that it weighs, its own, comes first.
template <int TILES>
DEVICE int scored_tile(int i) {
    const int warp = threadIdx.x / 32;
    return TILES == 8 ? warp / 4 * 4 + ((warp ^ i) & 3) : i;
}

// The queries as B fragments: this warp's quarter of the columns.
template <class Config, int TILES>
DEVICE void load_queries(const bf16* q, const MlaQueries& queries,
                         u32 (&fragment)[MlaTiles<Config, TILES>::scored][Mla<Config>::quarter_steps][2]) {
    using M = Mla<Config>;
    using Tiles = MlaTiles<Config, TILES>;
    const int lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < Tiles::scored; ++i) {
        const int tile = scored_tile<TILES>(i), head = queries.head + tile % Tiles::of_row * 8 + lane / 4;
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
DEVICE float4& score_slot(MlaShared<Config>& shared, int tile, int half, int quarter) {
    return shared.scores[(tile * 2 + half) * quarters_stored(TILES) + quarter][threadIdx.x % 32];
}

// Leaves a quarter of every score in shared memory; what this warp will weigh itself stays in `own`.
template <class Config, int TILES>
DEVICE void score_tile(MlaShared<Config>& shared, u32 keys,
                       const u32 (&query)[MlaTiles<Config, TILES>::scored][Mla<Config>::quarter_steps][2], float (&own)[2][4]) {
    using M = Mla<Config>;
    constexpr int scored = MlaTiles<Config, TILES>::scored;
    const int lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % 4;
#pragma unroll
    for (int pass = 0; pass < (TILES == 8 ? 2 : 1); ++pass) {
        const int half = TILES == 8 ? pass : threadIdx.x / 128;
        const u32 from = keys + (half * 16 + lane % 16) * M::pitch + lane / 16 * 16 + quarter * 32;
        float s[scored][4] = {};
#pragma unroll
        for (int k = 0; k < M::quarter_steps; ++k) {
            if (M::steps % 4 != 0 && 4 * k + quarter >= M::steps) break;
            u32 key[4];
            ldmatrix_x4(key, from + k * 128);
#pragma unroll
            for (int i = 0; i < scored; ++i) mma_bf16_16816(s[i], key, query[i][k]);
        }
#pragma unroll
        for (int i = TILES == 8 ? 1 : 0; i < scored; ++i)
            score_slot<Config, TILES>(shared, scored_tile<TILES>(i), half, TILES == 8 ? i - 1 : quarter) =
                make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
        if constexpr (TILES == 8)
#pragma unroll
            for (int i = 0; i < 4; ++i) own[pass][i] = s[0][i];
    }
}

// Scores to weights, one head tile a warp. A lane has keys lane / 4 + 0, 8, 16, 24 of queries 2 (lane % 4) and the next.
template <class Config, int TILES>
DEVICE void weigh_tile(MlaShared<Config>& shared, int begin, const float (&own)[2][4], MlaSum<Config, TILES>& sum) {
    const int lane = threadIdx.x % 32, tile = threadIdx.x / 32;
    if (tile >= TILES) return;
    const int last = shared.last[tile];
    float p[2][4];
    const auto element = [](const float4& x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float4 part[quarters_stored(TILES)];
#pragma unroll
        for (int quarter = 0; quarter < quarters_stored(TILES); ++quarter)
            part[quarter] = score_slot<Config, TILES>(shared, tile, half, quarter);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Of 8 head tiles, the parts are those of quarters own ^ 1, own ^ 2 and own ^ 3: the same sum of pairs.
            const float s = TILES == 8 ? (own[half][i] + element(part[0], i)) + (element(part[1], i) + element(part[2], i))
                                       : (element(part[0], i) + element(part[1], i)) +
                                             (element(part[2], i) + element(part[quarters_stored(TILES) - 1], i));
            p[half][i] = begin + half * 16 + lane / 4 + i / 2 * 8 <= last ? s * Config::scale_log2 : kNoPeak;
        }
    }
    bool changed = false;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
        float peak = fmaxf(fmaxf(p[0][odd], p[0][odd + 2]), fmaxf(p[1][odd], p[1][odd + 2]));
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, distance));
        float factor = 1.f;
        if (peak > sum.peak[odd] + kSlack) {
            if (sum.peak[odd] != kNoPeak) factor = ex2(sum.peak[odd] - peak);
            sum.peak[odd] = peak;
        }
        changed |= factor != 1.f;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int below = 0; below < 4; below += 2) {
                float& x = p[half][odd + below];
                x = x == kNoPeak ? 0.f : ex2(x - sum.peak[odd]);   // select: without visible keys the peak is kNoPeak too
            }
        sum.total[odd] = fmaf(sum.total[odd], factor, (p[0][odd] + p[0][odd + 2]) + (p[1][odd] + p[1][odd + 2]));
        if (lane < 4) shared.factor[tile * 8 + lane * 2 + odd] = factor;
    }
    changed = __any_sync(0xffffffffu, changed);
    if (lane == 0) shared.changed[tile] = changed;
    __syncwarp();   // all lanes have read the scores: the weights take their place
    u32* weights = reinterpret_cast<u32*>(&shared.scores[tile * 2 * quarters_stored(TILES)]);
#pragma unroll
    for (int group = 0; group < 4; ++group)
        weights[group * 32 + lane] = pack_bf16(p[group / 2][group % 2 * 2], p[group / 2][group % 2 * 2 + 1]);
}

template <class Config, int TILES>
DEVICE void add_values(const MlaShared<Config>& shared, u32 keys, MlaSum<Config, TILES>& sum) {
    using M = Mla<Config>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint2 changed = *reinterpret_cast<const uint2*>(shared.changed);
    if (changed.x | changed.y)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
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
// `last`: the own position of the row that this warp weighs.
template <class Config>
DEVICE int find_key(const MlaShared<Config>& shared, int tile) {   // of this lane, in a tile that there is or that follows
    const MlaKeys& keys = shared.source;
    const int position = tile + copied_key();
    return tile >= 0 && threadIdx.x % 32 < kKeysOfWarp && (tile == keys.following || position < keys.end) ? keys.find(position) : 0;
}

template <class Config>
DEVICE void start_walk(MlaShared<Config>& shared, const MlaKeys& keys, int begin, int last, const MlaStream& stream) {
    if (threadIdx.x == 0) shared.source = keys;
    if (threadIdx.x % 32 == 0) shared.last[threadIdx.x / 32] = last;
    __syncthreads();
    if (!stream.started) load_keys(shared, stream.index, begin, find_key(shared, begin));
}

// After start_walk. The first tile of the following walk is asked for while the last one here is in work. Keys are found a
// tile ahead of their copies.
template <class Config, int TILES>
DEVICE void attend(MlaShared<Config>& shared, const u32 (&query)[MlaTiles<Config, TILES>::scored][Mla<Config>::quarter_steps][2],
                   int begin, MlaStream& stream, MlaSum<Config, TILES>& sum) {
    const MlaKeys& keys = shared.source;
    const auto after = [&] { return begin + kTileKeys < keys.end ? begin + kTileKeys : keys.following; };
    int found = find_key(shared, after());
    sum = {};
    sum.peak[0] = sum.peak[1] = kNoPeak;
    for (bool more = true; more; ++stream.index) {
        mbar_wait(smem_u32(&shared.arrived[stream.index % 2]), stream.index / 2 % 2);
        __syncthreads();   // scores, weights and the other buffer are free, zeros are there
        more = begin + kTileKeys < keys.end;
        if (after() >= 0) load_keys(shared, stream.index + 1, after(), found);
        const int tile = begin;
        begin += kTileKeys;
        if (more) found = find_key(shared, after());
        const u32 buffer = smem_u32(shared.keys[stream.index % 2]);
        float own[2][4];
        score_tile<Config, TILES>(shared, buffer, query, own);
        __syncthreads();
        weigh_tile<Config, TILES>(shared, tile, own, sum);
        __syncthreads();
        add_values<Config, TILES>(shared, buffer, sum);
    }
    stream.started = keys.following >= 0;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd)
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2)
            sum.total[odd] += __shfl_xor_sync(0xffffffffu, sum.total[odd], distance);
}

// Calls store(tile, query, odd) for every query whose sums this thread holds and that exists; query = row x heads + head.
template <class Config, int TILES, class Store>
DEVICE void for_each_query(const MlaQueries& queries, Store store) {
    using Tiles = MlaTiles<Config, TILES>;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int member = tile / Tiles::of_row;
            const int head = queries.head + tile % Tiles::of_row * 8 + threadIdx.x % 4 * 2 + odd;
            if (member < queries.count && head < Config::heads) store(tile, queries.row(member) * Config::heads + head, odd);
        }
}

}  // namespace ddtree
