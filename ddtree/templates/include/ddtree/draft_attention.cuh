// Grouped-query attention of a draft block over its sequence's cached context and the block's own rows.
//
//   q    [rows][heads][dim] bf16                       y  [rows][heads][dim] bf16
//   k, v [rows][kv_heads][dim] bf16                    of the block's rows
//   keys, values  caches of the context: [page][64][kv_heads][dim], or with Config::ring a ring of so many positions for each
//                 sequence, position p at p % ring
//   sums, stats   partial results by part (attention_merge.cuh); draft_attention_merge makes y of them
//
// The rows of a sequence come after its committed positions. A row sees keys at a distance below Config::window (0: all of
// them), of the block's rows with Config::causal only those up to its own position.
//
// 64 queries a block: as many rows of one sequence as fit times the query heads of one key head; four warps of 16 queries,
// which stay in registers with their weights and sums. Keys come in tiles of 32 positions, the block's rows in tiles of
// their own behind them, the next ones in flight. The context's tiles are cut into at most Config::parts equal runs; the last
// one also takes the block. Hidden and absent keys have weight 0 exactly and zeros in shared memory.
// A row's bits depend on its own sequence's context length and block alone: row-invariant in any company.
// Tests: tests/ops/test_draft_attention.py
#pragma once
#include "ddtree/attention_merge.cuh"
#include "ddtree/row_groups.cuh"

namespace ddtree {

constexpr int kDraftThreads = 128;
constexpr int kDraftQueries = 64;   // of a block
constexpr int kDraftKeys = 32;      // of a tile

// Config: heads, kv_heads, dim, rows (capacity of the step), window, ring, causal, parts, stages (tiles in
// shared memory: one in work, the others on their way), scale_log2 (scale times log2 e).
template <class Config>
struct Draft {
    static constexpr int sharing = Config::heads / Config::kv_heads;   // query heads of a key head
    static constexpr int group = kDraftQueries / sharing;              // rows of a block
    static constexpr int queries = Config::rows * Config::heads;
    static constexpr int pitch = Config::dim * 2 + 16;                 // bytes of a key in shared memory: an odd number of 16,
                                                                       // so that eight rows of a matrix lie in different banks
    static constexpr int steps = Config::dim / 16;
    static_assert(Config::dim % 16 == 0 && sharing <= kDraftQueries, "whole mma tiles, a row in one block");
};

template <class Config>
struct DraftShared {
    unsigned char keys[Config::stages][kDraftKeys * Draft<Config>::pitch];
    unsigned char values[Config::stages][kDraftKeys * Draft<Config>::pitch];
    int position[Config::stages][kDraftKeys];   // of each key, -1 where there is none
    RowGroups<Config::rows> groups;
};

// How a sequence's context is cut: part p takes tiles first_tile + p * tiles_of_part .. of 32 absolute positions.
template <class Config>
struct DraftCut {
    int first, tiles, tiles_of_part, parts;   // first: the lowest position that any row sees

    DEVICE explicit DraftCut(int committed) {
        first = Config::window > 0 ? max(0, committed - Config::window + 1) : 0;
        tiles = (committed + kDraftKeys - 1) / kDraftKeys - first_tile();
        tiles_of_part = max(2, (tiles + Config::parts - 1) / Config::parts);   // two are in flight at once
        parts = max(1, (tiles + tiles_of_part - 1) / tiles_of_part);
    }
    DEVICE int first_tile() const { return first / kDraftKeys; }
};

// Where a block finds its keys.
struct DraftSource {
    const bf16 *keys, *values;       // the caches
    const bf16 *k, *v;               // the block's rows
    const u16* block_rows;           // rows of the sequence
    int block_size, sequence, committed, kv_head;
};

// Four threads a position. What a tile's copy has to look up first: a page, or a row of the block; tiles at or past cut.tiles
// are block rows.
template <class Config>
DEVICE int find_draft_tile(const DraftSource& from, const Rows& rows, const DraftCut<Config>& cut, int tile) {
    const int i = threadIdx.x / 4, at = (cut.first_tile() + tile) * kDraftKeys + i, in_block = (tile - cut.tiles) * kDraftKeys + i;
    if (tile >= cut.tiles) return in_block < from.block_size ? from.block_rows[in_block] : 0;
    if (Config::ring > 0 || at < cut.first || at >= from.committed) return 0;
    return rows.pages[size_t(from.sequence) * rows.pages_per_sequence + at / kPage];
}

// Keys and values of a tile by what was found, one asynchronous group, empty from tile `end` on.
template <class Config>
DEVICE void load_draft_tile(DraftShared<Config>& shared, int buffer, const DraftSource& from, const Rows& rows,
                            const DraftCut<Config>& cut, int tile, int end, int found) {
    if (tile >= end) return cp_async_commit();   // groups are counted
    constexpr int vectors = Config::dim / 8;
    const int i = threadIdx.x / 4;
    const bf16 *key = from.keys, *value = from.values;
    int position = -1;
    if (tile < cut.tiles) {
        const int at = (cut.first_tile() + tile) * kDraftKeys + i;
        if (at >= cut.first && at < from.committed) {
            position = at;
            const size_t slot = Config::ring > 0 ? size_t(from.sequence) * Config::ring + at % max(1, Config::ring)
                                                 : size_t(found) * kPage + at % kPage;
            const size_t offset = (slot * Config::kv_heads + from.kv_head) * Config::dim;
            key += offset;
            value += offset;
        }
    } else if ((tile - cut.tiles) * kDraftKeys + i < from.block_size) {
        position = rows.position[found];
        const size_t offset = (size_t(found) * Config::kv_heads + from.kv_head) * Config::dim;
        key = from.k + offset;
        value = from.v + offset;
    }
    const u32 to_key = smem_u32(shared.keys[buffer]) + i * Draft<Config>::pitch;
    const u32 to_value = smem_u32(shared.values[buffer]) + i * Draft<Config>::pitch;
#pragma unroll
    for (int step = 0; step < (vectors + 3) / 4; ++step) {
        const int vector = step * 4 + threadIdx.x % 4;
        if (vectors % 4 == 0 || vector < vectors) {
            cp_async16(to_key + vector * 16, key + vector * 8, position >= 0);
            cp_async16(to_value + vector * 16, value + vector * 8, position >= 0);
        }
    }
    cp_async_commit();
    if (threadIdx.x % 4 == 0) shared.position[buffer][i] = position;
}

// A warp's sixteen queries. A lane holds rows g = lane / 4 and g + 8 of every fragment, columns 2 (lane % 4) and the next.
template <class Config>
struct DraftWarp {
    u32 query[Draft<Config>::steps][4];
    float sum[Config::dim / 8][4];
    float peak[2], total[2];   // total: of this lane's columns, until finish()
    int position[2];           // of the queries; -1 where there is none

    DEVICE void start(const bf16* q, const Rows& rows, const u16* members, int count, int kv_head) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            const int query_of_block = threadIdx.x / 32 * 16 + lane / 4 + below * 8;
            const int member = query_of_block / Draft<Config>::sharing;
            const bool there = member < count;
            const int row = members[there ? member : 0];
            const int head = kv_head * Draft<Config>::sharing + query_of_block % Draft<Config>::sharing;
            position[below] = there ? rows.position[row] : -1;
            const bf16* from = q + (size_t(row) * Config::heads + head) * Config::dim + lane % 4 * 2;
#pragma unroll
            for (int step = 0; step < Draft<Config>::steps; ++step) {
                query[step][below] = *reinterpret_cast<const u32*>(from + step * 16);
                query[step][below + 2] = *reinterpret_cast<const u32*>(from + step * 16 + 8);
            }
            peak[below] = kNoPeak;
            total[below] = 0.f;
        }
#pragma unroll
        for (int n = 0; n < Config::dim / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] = 0.f;
    }

    DEVICE void score(u32 keys, float (&s)[4][4]) const {
        const int lane = threadIdx.x % 32;
        const u32 from = keys + (lane % 8 + lane / 16 * 8) * Draft<Config>::pitch + lane / 8 % 2 * 16;
#pragma unroll
        for (int step = 0; step < Draft<Config>::steps; ++step)
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {   // sixteen keys
                u32 key[4];
                ldmatrix_x4(key, from + pair * 16 * Draft<Config>::pitch + step * 32);
                mma_bf16_16816(s[2 * pair], query[step], {key[0], key[1]});
                mma_bf16_16816(s[2 * pair + 1], query[step], {key[2], key[3]});
            }
    }

    // Scores become weights; sums and totals are corrected for the new peak.
    DEVICE void weigh(const int (&key_position)[kDraftKeys], float (&s)[4][4]) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            bool visible[4][2];
            float highest = peak[below];
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    const int at = key_position[n * 8 + lane % 4 * 2 + odd], distance = position[below] - at;
                    visible[n][odd] = at >= 0 && (Config::window == 0 || max(distance, -distance) < Config::window) &&
                                      (!Config::causal || distance >= 0);
                    float& score = s[n][2 * below + odd];
                    score = visible[n][odd] ? score * Config::scale_log2 : kNoPeak;
                    highest = fmaxf(highest, score);
                }
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
            const float factor = ex2(peak[below] - highest);
            peak[below] = highest;
            total[below] *= factor;
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    float& weight = s[n][2 * below + odd];
                    weight = visible[n][odd] ? ex2(weight - highest) : 0.f;   // select: the peak may be kNoPeak
                    total[below] += weight;
                }
#pragma unroll
            for (int n = 0; n < Config::dim / 8; ++n) {
                sum[n][2 * below] *= factor;
                sum[n][2 * below + 1] *= factor;
            }
        }
    }

    DEVICE void add_values(u32 values, const float (&weight)[4][4]) {
        const int lane = threadIdx.x % 32;
        const u32 from = values + lane % 16 * Draft<Config>::pitch + lane / 16 * 16;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const float(&w)[4] = weight[2 * pair], (&x)[4] = weight[2 * pair + 1];
            const u32 a[4] = {pack_bf16(w[0], w[1]), pack_bf16(w[2], w[3]), pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
#pragma unroll
            for (int n = 0; n < Config::dim / 16; ++n) {
                u32 value[4];
                ldmatrix_x4_trans(value, from + pair * 16 * Draft<Config>::pitch + n * 32);
                mma_bf16_16816(sum[2 * n], a, {value[0], value[1]});
                mma_bf16_16816(sum[2 * n + 1], a, {value[2], value[3]});
            }
        }
    }

    DEVICE void finish(const u16* members, int kv_head, int part, float* sums, float2* stats) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int below = 0; below < 2; ++below) {
            total[below] += __shfl_xor_sync(0xffffffffu, total[below], 1);
            total[below] += __shfl_xor_sync(0xffffffffu, total[below], 2);
            if (position[below] < 0) continue;
            const int query_of_block = threadIdx.x / 32 * 16 + lane / 4 + below * 8;
            const int row = members[query_of_block / Draft<Config>::sharing];
            const int head = kv_head * Draft<Config>::sharing + query_of_block % Draft<Config>::sharing;
            const size_t at = size_t(part) * Draft<Config>::queries + row * Config::heads + head;
#pragma unroll
            for (int n = 0; n < Config::dim / 8; ++n)
                *reinterpret_cast<float2*>(sums + at * Config::dim + n * 8 + lane % 4 * 2) =
                    make_float2(sum[n][2 * below], sum[n][2 * below + 1]);
            if (lane % 4 == 0) stats[at] = make_float2(peak[below], total[below]);
        }
    }
};

// Blocks take items in turn: (group of rows, key head, part of the context).
template <class Config>
DEVICE void draft_attention(const bf16* q, const bf16* k, const bf16* v, const bf16* keys, const bf16* values, const Rows* table,
                            float* sums, float2* stats) {
    pdl_launch_dependents();
    pdl_wait();
    DYN_SMEM(memory);
    auto& shared = *reinterpret_cast<DraftShared<Config>*>(memory);
    auto& groups = shared.groups;
    const Rows rows = *table;
    sort_rows(groups, rows);
    cut_groups<Draft<Config>::group>(groups, rows);
    for (int item = blockIdx.x; item < groups.count * Config::kv_heads * Config::parts; item += gridDim.x) {
        const int part = item % Config::parts, kv_head = item / Config::parts % Config::kv_heads;
        const int group = item / (Config::parts * Config::kv_heads);
        const u16* members = groups.rows(group);
        const int sequence = rows.sequence[members[0]], committed = rows.committed[sequence];
        const DraftCut<Config> cut(committed);
        if (part >= cut.parts) continue;
        const DraftSource from{keys, values, k, v, groups.sequence_rows(group), groups.sequence_size(group),
                               sequence, committed, kv_head};
        int tile = part * cut.tiles_of_part;
        const int end = part < cut.parts - 1 ? tile + cut.tiles_of_part
                                             : cut.tiles + (from.block_size + kDraftKeys - 1) / kDraftKeys;
        __syncthreads();   // nobody reads the tiles of the item before
        int found[Config::stages];   // the last one is looked up a tile ahead of its copy
#pragma unroll
        for (int stage = 0; stage < Config::stages; ++stage) found[stage] = find_draft_tile(from, rows, cut, tile + stage);
#pragma unroll
        for (int stage = 0; stage < Config::stages - 1; ++stage)
            load_draft_tile(shared, stage, from, rows, cut, tile + stage, end, found[stage]);
        int& ahead = found[Config::stages - 1];
        DraftWarp<Config> warp;
        warp.start(q, rows, members, groups.rows_of(group), kv_head);
        for (int buffer = 0; tile < end; ++tile, buffer = (buffer + 1) % Config::stages) {
            cp_async_wait<Config::stages - 2>();
            __syncthreads();   // this tile is there, the buffer of the one before is free
            load_draft_tile(shared, (buffer + Config::stages - 1) % Config::stages, from, rows, cut, tile + Config::stages - 1, end,
                            ahead);
            ahead = find_draft_tile(from, rows, cut, tile + Config::stages);
            float s[4][4] = {};
            warp.score(smem_u32(shared.keys[buffer]), s);
            warp.weigh(shared.position[buffer], s);
            warp.add_values(smem_u32(shared.values[buffer]), s);
        }
        warp.finish(members, kv_head, part, sums, stats);
    }
}

// grid: queries, i.e. heads of rows; kMergeThreads a block.
template <class Config>
DEVICE void draft_attention_merge(const float* sums, const float2* stats, const Rows* rows, bf16* y) {
    pdl_launch_dependents();
    pdl_wait();
    const int query = blockIdx.x, row = query / Config::heads;
    if (row >= rows->count) return;
    const DraftCut<Config> cut(rows->committed[rows->sequence[row]]);
    merge_parts<Draft<Config>::queries, Config::dim, 1>(sums + size_t(query) * Config::dim, stats + query, cut.parts,
                                                        [](int i) { return i; }, y + size_t(query) * Config::dim);
}

}  // namespace ddtree
