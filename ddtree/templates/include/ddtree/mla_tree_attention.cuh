// Absorbed MLA attention of tree rows or prompt rows: one key-value head, keys latent + rope wide, values = their first
// `latent` columns.
//
//   q       [rows][heads][latent + rope] bf16          y  [rows][heads][latent] bf16
//   pages   [page][64][latent + rope] bf16             committed rows, through the page table
//   scratch [sequence][64][latent + rope] bf16         the tree's own rows
//   sums, stats  partial results by segment (attention_merge.cuh); mla_tree_attention_merge makes y of them
//
// Everything is computed transposed, S^T = K Q^T and O^T = V^T P^T: keys and value columns fill the 16 rows of an mma, and
// its eight columns are eight heads of one row (a *head tile*). So one row wastes nothing, and GROUP rows share each key.
// Absent heads and rows of a head tile or group compute garbage that nobody stores.
//
// Positions are cut into segments at a fixed list of absolute positions, and a segment is walked in tiles of 32 keys:
//   s = (s0 + s1) + (s2 + s3), part j sums the 16-column steps j, j + 4, j + 8, ... in this order, one warp each
//   running peak m; p = 2^(s - m), rounded to bf16 as operand of the value mma's; l = l c + (sum of the 32 p as a binary
//   tree, before rounding); O = O c + two mma's of 16 keys
// Segments wholly below the committed length are computed once for a group of rows. Those that reach past it (one or two)
// are walked for each row alone: committed rows, then the row's ancestors in position order, itself last. So every key
// stands in the lane in which plain decoding of that path would have it, and the row's bits are those of plain decoding.
// A masked key has p = 0 exactly and a row of zeros (or of finite values) in shared memory, hence rows that share tiles, the
// number of rows and the grid never change a bit: row-invariant. Memory past the last key may hold NaN; it is not read.
// Prompt rows find all their keys in pages and are walked from position 0 to the end without a cut.
//
// Eight warps. Scores: four quarters of the columns x two halves of the tile's keys; values: an eighth of the columns each.
// Tests: tests/ops/test_mla_tree_attention.py
#pragma once
#include "ddtree/attention_merge.cuh"
#include "ddtree/row_groups.cuh"

namespace ddtree {

constexpr int kMlaThreads = 256;
constexpr int kTileKeys = 32;

// ---- the cuts: every 128 positions below 8,192, every 512 below 65,536, then every 2,048 --------------------------------
DEVICE constexpr int segment_of(int position) {
    return position < 8192 ? position / 128 : position < 65536 ? 64 + (position - 8192) / 512 : 176 + (position - 65536) / 2048;
}
DEVICE constexpr int segment_begin(int segment) {
    return segment < 64 ? segment * 128 : segment < 176 ? 8192 + (segment - 64) * 512 : 65536 + (segment - 176) * 2048;
}

// Config: heads, latent, rope, rows (capacity of the step), group (rows that share keys), head_tiles (of a row, in one
// block), scale_log2 (softmax scale times log2 e).
template <class Config>
struct Mla {
    static constexpr int key = Config::latent + Config::rope;
    static constexpr int steps = key / 16;                       // mma steps over the columns of a key
    static constexpr int quarter_steps = (steps + 3) / 4;
    static constexpr int value_tiles = Config::latent / 16 / 8;  // 16-column tiles of a warp
    static constexpr int tiles = Config::group * Config::head_tiles;
    static constexpr int parts = ((Config::heads + 7) / 8 + Config::head_tiles - 1) / Config::head_tiles;  // blocks for all heads
    static constexpr int queries = Config::rows * Config::heads;
    static constexpr int pitch = key * 2 + 16;                   // bytes of a key in shared memory: an odd number of 16, so
                                                                 // that eight rows of a matrix lie in different banks
    static_assert(Config::latent % 128 == 0 && key % 16 == 0, "whole mma tiles");
    static_assert(tiles == 1 || tiles == 2 || tiles == 4, "head tiles of a block");
};

template <class Config>
struct MlaShared {
    static constexpr int queries = Mla<Config>::tiles * 8;
    unsigned char keys[2][kTileKeys * Mla<Config>::pitch];
    float scores[4][queries][kTileKeys + 4];   // + 4: the lanes that write or read together hit different banks
    bf16 weights[queries][kTileKeys + 8];
    float factor[queries];                     // of O: its correction for a new peak, in the end the sum of the weights
    int path[kScratch];                        // scratch slots of a row's ancestors, root first, itself last
};

// Where the key of each position lies. Positions from `end` on have none.
template <class Config>
struct MlaKeys {
    const bf16* pages;
    const int* page_table;
    const bf16* scratch;
    const int* path;
    int committed;   // path[0] is the key of this position
    int end;

    DEVICE const bf16* row(int position) const {
        if (position >= committed) return scratch + size_t(path[position - committed]) * Mla<Config>::key;
        return pages + (size_t(page_table[position / kPage]) * kPage + position % kPage) * Mla<Config>::key;
    }
};

// The rows that a block attends for, and which of their heads.
struct MlaQueries {
    const int* rows;   // row numbers, in shared memory
    int count;
    int part;          // heads from part * head_tiles * 8
};

template <class Config, int TILES>
struct MlaSum {                                            // of one block's walk
    float values[Mla<Config>::value_tiles][TILES][4];      // O^T: a warp's columns x the queries
    float peak, total;                                     // of the query that this thread weighs
};

template <class Config>
DEVICE void load_keys(u32 to, const MlaKeys<Config>& keys, int begin) {   // eight threads a key, one asynchronous group
    const int key = threadIdx.x / 8, position = begin + key;
    const bool valid = position < keys.end;
    const bf16* row = valid ? keys.row(position) : keys.pages;
    constexpr int vectors = Mla<Config>::key / 8;
#pragma unroll
    for (int i = 0; i < (vectors + 7) / 8; ++i) {
        const int vector = i * 8 + threadIdx.x % 8;
        if (vectors % 8 == 0 || vector < vectors) cp_async16(to + key * Mla<Config>::pitch + vector * 16, row + vector * 8, valid);
    }
    cp_async_commit();
}

// ---- one tile of 32 keys -------------------------------------------------------------------------------------------------
// The queries as B fragments: this warp's quarter of the columns, all head tiles.
template <class Config, int TILES>
DEVICE void load_queries(const bf16* q, const MlaQueries& queries, u32 (&fragment)[TILES][Mla<Config>::quarter_steps][2]) {
    using M = Mla<Config>;
    const int lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % 4;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        const int row = queries.rows[min(tile / Config::head_tiles, queries.count - 1)];
        const int head = (queries.part * Config::head_tiles + tile % Config::head_tiles) * 8 + lane / 4;
        const bf16* from = q + (size_t(row) * Config::heads + head) * M::key + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < M::quarter_steps; ++k) {
            const int step = 4 * k + quarter;
            const bool there = step < M::steps && head < Config::heads;
            fragment[tile][k][0] = there ? *reinterpret_cast<const u32*>(from + step * 16) : 0;
            fragment[tile][k][1] = there ? *reinterpret_cast<const u32*>(from + step * 16 + 8) : 0;
        }
    }
}

template <class Config, int TILES>
DEVICE void score_tile(MlaShared<Config>& shared, u32 keys, const u32 (&query)[TILES][Mla<Config>::quarter_steps][2]) {
    using M = Mla<Config>;
    const int lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    const u32 from = keys + (half * 16 + lane % 16) * M::pitch + lane / 16 * 16;
    float s[TILES][4] = {};
#pragma unroll
    for (int k = 0; k < M::quarter_steps; ++k) {
        const int step = 4 * k + quarter;
        if (step < M::steps) {
            u32 key[4];
            ldmatrix_x4(key, from + step * 32);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) mma_bf16_16816(s[tile], key, query[tile][k]);
        }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            shared.scores[quarter][tile * 8 + lane % 4 * 2 + i % 2][half * 16 + lane / 4 + i / 2 * 8] = s[tile][i];
}

// Scores to weights: 32 / TILES threads a query, TILES consecutive keys a thread. `last` is the query's own position.
template <class Config, int TILES>
DEVICE void weigh_tile(MlaShared<Config>& shared, int begin, int last, MlaSum<Config, TILES>& sum) {
    constexpr int lanes = 32 / TILES;
    const int query = threadIdx.x / lanes, first = threadIdx.x % lanes * TILES;
    float p[TILES], peak = sum.peak;
#pragma unroll
    for (int k = 0; k < TILES; ++k) {
        const float s = (shared.scores[0][query][first + k] + shared.scores[1][query][first + k]) +
                        (shared.scores[2][query][first + k] + shared.scores[3][query][first + k]);
        p[k] = begin + first + k <= last ? s * Config::scale_log2 : kNoPeak;
        peak = fmaxf(peak, p[k]);
    }
#pragma unroll
    for (int distance = 1; distance < lanes; distance *= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, distance));
#pragma unroll
    for (int k = 0; k < TILES; ++k) {
        p[k] = begin + first + k <= last ? ex2(p[k] - peak) : 0.f;   // select: without visible keys the peak is kNoPeak too
        shared.weights[query][first + k] = to_bf16(p[k]);
    }
    // A binary tree over the 32 keys, the same for every TILES.
#pragma unroll
    for (int distance = 1; distance < TILES; distance *= 2)
#pragma unroll
        for (int k = 0; k < TILES; k += 2 * distance) p[k] += p[k + distance];
#pragma unroll
    for (int distance = 1; distance < lanes; distance *= 2) p[0] += __shfl_xor_sync(0xffffffffu, p[0], distance);
    const float factor = ex2(sum.peak - peak);
    sum.peak = peak;
    sum.total = fmaf(sum.total, factor, p[0]);
    if (threadIdx.x % lanes == 0) shared.factor[query] = factor;
}

template <class Config, int TILES>
DEVICE void add_values(const MlaShared<Config>& shared, u32 keys, MlaSum<Config, TILES>& sum) {
    using M = Mla<Config>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 weights[TILES][4];   // B fragments of both halves of the tile
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
        ldmatrix_x4(weights[tile], smem_u32(&shared.weights[tile * 8 + lane % 8][lane / 8 * 8]));
        const float even = shared.factor[tile * 8 + lane % 4 * 2], odd = shared.factor[tile * 8 + lane % 4 * 2 + 1];
#pragma unroll
        for (int m = 0; m < M::value_tiles; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum.values[m][tile][i] *= i % 2 ? odd : even;
    }
    const u32 from = keys + (lane % 8 + lane / 16 * 8) * M::pitch + warp * M::value_tiles * 32 + lane / 8 % 2 * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int m = 0; m < M::value_tiles; ++m) {
            u32 value[4];
            ldmatrix_x4_trans(value, from + half * 16 * M::pitch + m * 32);
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const u32 weight[2] = {weights[tile][2 * half], weights[tile][2 * half + 1]};
                mma_bf16_16816(sum.values[m][tile], value, weight);
            }
        }
}

// ---- a walk over the keys of positions begin .. keys.end - 1; begin is a multiple of 32 -----------------------------------
template <class Config, int ROWS>
DEVICE void attend(MlaShared<Config>& shared, const bf16* q, const Rows& rows, const MlaQueries& queries,
                   const MlaKeys<Config>& keys, int begin, MlaSum<Config, ROWS * Config::head_tiles>& sum) {
    constexpr int tiles = ROWS * Config::head_tiles;
    constexpr u32 buffer_bytes = sizeof(shared.keys[0]);
    const u32 buffers = smem_u32(shared.keys);
    const int mine = threadIdx.x / (32 / tiles) / (Config::head_tiles * 8);   // which row of the group this thread weighs
    const int last = rows.position[queries.rows[min(mine, queries.count - 1)]];
    __syncthreads();   // the walk before is over, and the path is there
    load_keys(buffers, keys, begin);
    u32 query[tiles][Mla<Config>::quarter_steps][2];
    load_queries<Config, tiles>(q, queries, query);
    sum = {};
    sum.peak = kNoPeak;
    for (u32 buffer = 0; begin < keys.end; begin += kTileKeys, buffer = buffer_bytes - buffer) {
        cp_async_wait<0>();
        __syncthreads();   // this tile is there; scores, weights and the other buffer are free
        if (begin + kTileKeys < keys.end) load_keys(buffers + buffer_bytes - buffer, keys, begin + kTileKeys);
        score_tile<Config, tiles>(shared, buffers + buffer, query);
        __syncthreads();
        weigh_tile<Config, tiles>(shared, begin, last, sum);
        __syncthreads();
        add_values<Config, tiles>(shared, buffers + buffer, sum);
    }
}

// Calls store(row, head, column, value) for every sum that this thread holds, and whose row and head exist.
template <class Config, int TILES, class Store>
DEVICE void for_each_value(const MlaQueries& queries, const MlaSum<Config, TILES>& sum, Store store) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            const int member = tile / Config::head_tiles;
            const int query = tile * 8 + lane % 4 * 2 + odd;
            const int head = queries.part * Config::head_tiles * 8 + query % (Config::head_tiles * 8);
            if (member >= queries.count || head >= Config::heads) continue;
#pragma unroll
            for (int m = 0; m < Mla<Config>::value_tiles; ++m)
#pragma unroll
                for (int below = 0; below < 2; ++below)
                    store(queries.rows[member], head, query, (warp * Mla<Config>::value_tiles + m) * 16 + lane / 4 + below * 8,
                          sum.values[m][tile][odd + below * 2]);
        }
}

// ---- tree rows -------------------------------------------------------------------------------------------------------------
template <class Config, int ROWS>
DEVICE void attend_segment(MlaShared<Config>& shared, const bf16* q, const Rows& rows, const MlaQueries& queries,
                           const MlaKeys<Config>& keys, int segment, float* sums, float2* stats) {
    constexpr int tiles = ROWS * Config::head_tiles;
    MlaSum<Config, tiles> sum;
    attend<Config, ROWS>(shared, q, rows, queries, keys, segment_begin(segment), sum);
    const size_t first = size_t(segment) * Mla<Config>::queries;
    for_each_value<Config, tiles>(queries, sum, [&](int row, int head, int, int column, float value) {
        sums[(first + row * Config::heads + head) * Config::latent + column] = value;
    });
    constexpr int lanes = 32 / tiles;
    const int query = threadIdx.x / lanes, member = query / (Config::head_tiles * 8);
    const int head = queries.part * Config::head_tiles * 8 + query % (Config::head_tiles * 8);
    if (threadIdx.x % lanes == 0 && member < queries.count && head < Config::heads)
        stats[first + queries.rows[member] * Config::heads + head] = make_float2(sum.peak, sum.total);
}

// Blocks take items in turn: first the segments that belong to one row (two at most: 64 tree rows fit in one segment's
// length), then the shared ones, the longest first and the groups of a segment side by side, so that they meet in L2.
template <class Config>
DEVICE void mla_tree_attention(const bf16* q, const bf16* pages, const bf16* scratch, const Rows* table, float* sums,
                               float2* stats) {
    pdl_launch_dependents();
    pdl_wait();
    using M = Mla<Config>;
    DYN_SMEM(memory);
    auto& shared = *reinterpret_cast<MlaShared<Config>*>(memory);
    using Groups = RowGroups<Config::rows, Config::group>;
    SHARED_ARRAY(Groups, only_groups, 1);
    Groups& groups = only_groups[0];
    const Rows rows = *table;
    group_rows(groups, rows);
    int shared_segments = 0;
    for (int group = 0; group < groups.count; ++group)
        shared_segments = max(shared_segments, segment_of(rows.committed[rows.sequence[groups.rows(group)[0]]]));
    const int own_items = rows.count * 2 * M::parts;
    const int items = own_items + shared_segments * groups.count * M::parts;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const bool own = item < own_items;
        const int unit = (own ? item : item - own_items) / M::parts, part = item % M::parts;
        const int group = unit % max(1, groups.count);
        const int* members = own ? groups.order + unit / 2 : groups.rows(group);
        const int row = members[0], sequence = rows.sequence[row], committed = rows.committed[sequence];
        const int unshared = segment_of(committed);
        const int* page_table = rows.pages + size_t(sequence) * rows.pages_per_sequence;
        MlaKeys<Config> keys{pages, page_table, scratch + size_t(sequence) * kScratch * M::key, shared.path, committed, 0};
        if (own) {
            const int position = rows.position[row], segment = unshared + unit % 2;
            if (segment_begin(segment) > position) continue;
            keys.end = min(position + 1, segment_begin(segment + 1));
            __syncthreads();   // nobody reads the path of the item before
            if (threadIdx.x == 0)
                for (int depth = position - committed, node = row; depth >= 0; --depth, node = rows.parent[node])
                    shared.path[depth] = rows.node[node];
            attend_segment<Config, 1>(shared, q, rows, {members, 1, part}, keys, segment, sums, stats);
        } else {
            const int segment = shared_segments - 1 - unit / groups.count;
            if (segment >= unshared) continue;
            keys.end = segment_begin(segment + 1);
            const MlaQueries queries{members, groups.size(group), part};
            attend_segment<Config, Config::group>(shared, q, rows, queries, keys, segment, sums, stats);
        }
    }
}

// grid: vectors of four columns of all rows and heads, kMergeThreads a block.
template <class Config>
DEVICE void mla_tree_attention_merge(const float* sums, const float2* stats, const Rows* rows, bf16* y) {
    pdl_launch_dependents();
    pdl_wait();
    constexpr int vectors = Config::latent / 4;
    const int at = blockIdx.x * kMergeThreads + threadIdx.x;
    const int query = at / vectors, row = query / Config::heads;
    if (row >= rows->count) return;
    merge_parts<Mla<Config>::queries, Config::latent>(sums + size_t(query) * Config::latent, stats + query,
                                                      segment_of(rows->position[row]) + 1, at % vectors,
                                                      y + size_t(query) * Config::latent);
}

// ---- prompt rows -------------------------------------------------------------------------------------------------------------
// grid: (groups of Config::group neighbouring rows) x (parts of the heads). Rows of another sequence take another walk.
template <class Config>
DEVICE void mla_prompt_attention(const bf16* q, const bf16* pages, const Rows* table, bf16* y) {
    pdl_launch_dependents();
    pdl_wait();
    using M = Mla<Config>;
    DYN_SMEM(memory);
    auto& shared = *reinterpret_cast<MlaShared<Config>*>(memory);
    const Rows rows = *table;
    int begin = blockIdx.x * Config::group;
    const int end = min(begin + Config::group, rows.count);
    if (threadIdx.x < Config::group) shared.path[threadIdx.x] = begin + threadIdx.x;   // row numbers
    __syncthreads();
    for (int first = begin; begin < end; begin = first) {
        const int sequence = rows.sequence[begin];
        int last = 0;
        for (; first < end && rows.sequence[first] == sequence; ++first) last = max(last, rows.position[first]);
        const MlaQueries queries{shared.path + begin % Config::group, first - begin, int(blockIdx.y)};
        const int* page_table = rows.pages + size_t(sequence) * rows.pages_per_sequence;
        const MlaKeys<Config> keys{pages, page_table, nullptr, nullptr, last + 1, last + 1};
        MlaSum<Config, M::tiles> sum;
        attend<Config, Config::group>(shared, q, rows, queries, keys, 0, sum);
        __syncthreads();   // the last factors have been used
        if (threadIdx.x % (32 / M::tiles) == 0) shared.factor[threadIdx.x / (32 / M::tiles)] = sum.total;
        __syncthreads();
        for_each_value<Config, M::tiles>(queries, sum, [&](int row, int head, int query, int column, float value) {
            y[(size_t(row) * Config::heads + head) * Config::latent + column] = to_bf16(value / shared.factor[query]);
        });
    }
}

}  // namespace ddtree
