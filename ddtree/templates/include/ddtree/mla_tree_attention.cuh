// Absorbed MLA attention of tree rows or prompt rows: one key-value head, keys latent + rope wide, values = their first
// `latent` columns.
//
//   q       [rows][heads][latent + rope] bf16          y  [rows][heads][latent] bf16
//   pages   [page][64][latent + rope] bf16             committed rows, through the page table
//   scratch [sequence][64][latent + rope] bf16         the tree's own rows
//   sums, stats  partial results by segment (attention_merge.cuh); mla_tree_attention_merge makes y of them. Sums are bf16,
//                stored in the order of sum_column
//
// Positions are cut into segments at a fixed list of absolute positions, and a segment is walked in tiles of 32 keys
// (mla_tree_attention_tile.cuh). Segments wholly below the committed length are computed once for a group of rows. Those that
// reach past it (one or two) are walked for each row alone: committed rows, then the row's ancestors in position order,
// itself last. So every key stands in the lane in which plain decoding of that path would have it, and the row's bits are
// those of plain decoding. How many rows share a walk, their number and the grid never change a bit: row-invariant.
// Prompt rows find all their keys in pages and are walked from position 0 to the end without a cut.
// Tests: tests/ops/test_mla_tree_attention.py
#pragma once
#include "ddtree/mla_tree_attention_tile.cuh"
#include "ddtree/row_groups.cuh"

namespace ddtree {

// ---- the cuts: every 128 positions below 4,096, every 256 below 32,768, then every 1,024 ---------------------------------
DEVICE constexpr int segment_of(int position) {
    return position < 4096 ? position / 128 : position < 32768 ? 32 + (position - 4096) / 256 : 144 + (position - 32768) / 1024;
}
DEVICE constexpr int segment_begin(int segment) {
    return segment < 32 ? segment * 128 : segment < 144 ? 4096 + (segment - 32) * 256 : 32768 + (segment - 144) * 1024;
}

// ---- tree rows -------------------------------------------------------------------------------------------------------------
// Which items the blocks take. Items are numbered: the shared segments, the last first and side by side for the `units` of
// rows that walk them; then the rows' own segments. Rounds go over the blocks to and fro, so that those who had long items
// get the short ones last. A block keeps its unit, and so its queries, in every round. The first own items go to the blocks
// that are left over when units are dealt.
struct MlaSchedule {
    int units, segments, own;   // own: items
    int team, teams;            // blocks that go over the units once; how many such there are

    DEVICE MlaSchedule(int units, int segments, int own) : units(units), segments(segments), own(own) {
        team = min(units, int(gridDim.x));
        teams = gridDim.x / team;
    }
    DEVICE int shared() const { return units * segments; }   // items
    DEVICE int spare() const { return gridDim.x - team * teams; }
    DEVICE bool is_spare() const { return int(blockIdx.x) >= team * teams; }
    DEVICE int rounds() const {
        return is_spare() ? 1 : (shared() + max(0, own - spare()) + team * teams - 1) / (team * teams);
    }
    DEVICE int item(int round) const {
        if (is_spare()) return shared() + blockIdx.x - gridDim.x;
        const int turn = blockIdx.x / team;
        return (round * teams + (round % 2 ? teams - 1 - turn : turn)) * team + blockIdx.x % team;
    }
    DEVICE bool is_own(int item) const { return is_spare() || item >= shared(); }
    DEVICE int own_index(int item) const { return item - shared() + spare(); }
    DEVICE int unit(int item) const { return item % units; }
    DEVICE int segment(int item) const { return segments - 1 - item / units; }
};

// Config, besides that of the walk: head_tiles of a row, rounded up to a power of two; own, small and most, the head tiles
// of a block: for one row's own segments, and for segments that rows share when the work is little and when it is much.
template <class Config>
struct MlaTreeShared {
    MlaShared<Config> walk;
    Rows rows;
    MlaSchedule schedule;
    RowGroups<Config::rows> groups;
    int committed[Config::rows], position[Config::rows];   // [row]
    u8 parent[Config::rows], node[Config::rows];           // [row]; no parent: 0xff
};

struct MlaTree {   // the arguments of a launch
    const bf16 *q, *pages, *scratch;
    bf16* sums;
    float2* stats;
};

// Sum i of a query belongs to this column: a thread writes its sums side by side.
template <class Config>
DEVICE int sum_column(int i) {
    constexpr int tiles = Mla<Config>::value_tiles;
    return (i / (16 * tiles) * tiles + i % (2 * tiles) / 2) * 16 + i % 2 * 8 + i / (2 * tiles) % 8;
}

template <class Config, int TILES>
DEVICE void store_part(const MlaTree& tree, const MlaQueries& queries, int segment, const MlaSum<Config, TILES>& sum) {
    constexpr int tiles = Mla<Config>::value_tiles;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t first = size_t(segment) * Mla<Config>::queries;
    for_each_query<Config, TILES>(queries, [&](int tile, int query, int odd) {
        bf16* to = tree.sums + (first + query) * Config::latent + (warp * 8 + lane / 4) * 2 * tiles;
        u32 pair[tiles];
#pragma unroll
        for (int m = 0; m < tiles; ++m) pair[m] = pack_bf16(sum.values[m][tile][odd], sum.values[m][tile][odd + 2]);
        if constexpr (tiles == 4) store16(to, make_uint4(pair[0], pair[1], pair[2], pair[3]));
        else
#pragma unroll
            for (int m = 0; m < tiles; ++m) reinterpret_cast<u32*>(to)[m] = pair[m];
        if (tile == warp && lane < 4) tree.stats[first + query] = make_float2(sum.peak[odd], sum.total[odd]);
    });
}

template <class Config>
DEVICE MlaKeys page_keys(const MlaTree& tree, const Rows& rows, int sequence) {
    return {tree.pages, tree.scratch + size_t(sequence) * kScratch * Mla<Config>::key,
            rows.pages + size_t(sequence) * rows.pages_per_sequence, nullptr, 0x7fffffff, 0x7fffffff, -1};
}

// One item: a row, its first or second own segment, and which of its heads.
template <class Config>
DEVICE void walk_own(MlaTreeShared<Config>& shared, const MlaTree& tree, int round, MlaStream& stream) {
    using Tiles = MlaTiles<Config, Config::own>;
    const auto index = [&] { return shared.schedule.own_index(shared.schedule.item(round)); };
    const auto queries = [&] {
        const u16* row = shared.groups.order + index() / Tiles::parts % shared.rows.count;
        return MlaQueries{row, 0, 1, index() % Tiles::parts * Tiles::of_row * 8};
    };
    const auto segment = [&] {
        return segment_of(shared.committed[queries().row(0)]) + index() / Tiles::parts / shared.rows.count;
    };
    const int row = queries().row(0), position = shared.position[row], committed = shared.committed[row];
    const int begin = segment_begin(segment());
    if (begin > position) return;
    if (threadIdx.x == 0)
        for (int depth = position - committed, node = row; depth >= 0; --depth, node = shared.parent[node])
            shared.walk.path[depth] = shared.node[node];
    MlaKeys keys = page_keys<Config>(tree, shared.rows, shared.groups.sequence[row]);
    keys.path = shared.walk.path;
    keys.committed = committed;
    keys.end = min(position + 1, segment_begin(segment() + 1));
    start_walk<Config>(shared.walk, keys, begin, position, stream);
    u32 query[Tiles::scored][Mla<Config>::quarter_steps][2];
    load_queries<Config, Config::own>(tree.q, queries(), query);
    MlaSum<Config, Config::own> sum;
    attend<Config, Config::own>(shared.walk, query, begin, stream, sum);
    store_part<Config, Config::own>(tree, queries(), segment(), sum);
}

// This block's shared items, those of `round` and the rounds before it, for units of TILES head tiles. Registers are scarce:
// whatever is needed before and after a walk comes from shared memory both times.
template <class Config, int TILES>
DEVICE void walk_shared(MlaTreeShared<Config>& shared, const MlaTree& tree, int round, MlaStream stream) {
    using Tiles = MlaTiles<Config, TILES>;
    const MlaSchedule& schedule = shared.schedule;
    const auto queries = [&] {
        const int unit = schedule.unit(schedule.item(round)), group = unit / Tiles::parts;
        return MlaQueries{shared.groups.rows(group), 0, shared.groups.rows_of(group), unit % Tiles::parts * Tiles::of_row * 8};
    };
    u32 query[Tiles::scored][Mla<Config>::quarter_steps][2];
    for (; round >= 0; --round) {
        const int item = schedule.item(round), segment = schedule.segment(item);
        const int row = queries().row(0), unshared = segment_of(shared.committed[row]);
        if (segment >= unshared) continue;
        const int after = round > 0 ? schedule.item(round - 1) : -1, next = schedule.segment(after);
        const bool goes_on = round > 0 && schedule.unit(after) == schedule.unit(item) && next < unshared;
        MlaKeys keys = page_keys<Config>(tree, shared.rows, shared.groups.sequence[row]);
        keys.end = segment_begin(segment + 1);
        keys.following = goes_on ? segment_begin(next) : -1;
        start_walk<Config>(shared.walk, keys, segment_begin(segment), 0x7fffffff, stream);
        if (!stream.started) load_queries<Config, TILES>(tree.q, queries(), query);
        MlaSum<Config, TILES> sum;
        attend<Config, TILES>(shared.walk, query, segment_begin(segment), stream, sum);
        store_part<Config, TILES>(tree, queries(), schedule.segment(schedule.item(round)), sum);
    }
}

template <class Config>
DEVICE void mla_tree_attention(const bf16* q, const bf16* pages, const bf16* scratch, const Rows* table, bf16* sums,
                               float2* stats) {
    pdl_launch_dependents();
    pdl_wait();
    DYN_SMEM(memory);
    auto& shared = *reinterpret_cast<MlaTreeShared<Config>*>(memory);
    const MlaTree tree{q, pages, scratch, sums, stats};
    const Rows rows = *table;
    if (rows.count == 0) return;
    if (threadIdx.x == 0) shared.rows = rows;   // registers are scarce
    if (threadIdx.x < 8) shared.walk.changed[threadIdx.x] = 0;
    init_stream(shared.walk.arrived);
    for (int row = threadIdx.x; row < rows.count; row += kMlaThreads) {
        shared.position[row] = rows.position[row];
        shared.parent[row] = u8(rows.parent[row]);
        shared.node[row] = u8(rows.node[row]);
        shared.committed[row] = rows.committed[rows.sequence[row]];
    }
    sort_rows(shared.groups, rows);
    // What the smaller units would have to do, the most segments that rows share, whether a row has two of its own.
    constexpr int small_rows = MlaTiles<Config, Config::small>::rows, small_parts = MlaTiles<Config, Config::small>::parts;
    int little = 0, segments = 0, siblings = 0;
    bool crossing = false;
    for (int i = threadIdx.x % 32; i < rows.count; i += 32) {
        const int row = shared.groups.order[i], unshared = segment_of(shared.committed[row]);
        if (shared.groups.earlier[i] % small_rows == 0) little += unshared * small_parts;
        segments = max(segments, unshared);
        siblings = max(siblings, int(shared.groups.siblings[i]));
        crossing |= segment_of(shared.position[row]) > unshared;
    }
    little = __reduce_add_sync(0xffffffffu, little);
    segments = __reduce_max_sync(0xffffffffu, segments);
    siblings = __reduce_max_sync(0xffffffffu, siblings);
    const int own = rows.count * MlaTiles<Config, Config::own>::parts * (1 + __any_sync(0xffffffffu, crossing));
    const bool small = little <= int(gridDim.x) || siblings <= small_rows;
    cut_groups(shared.groups, rows, small ? small_rows : MlaTiles<Config, Config::most>::rows);
    const int units = shared.groups.count * (small ? small_parts : MlaTiles<Config, Config::most>::parts);
    if (threadIdx.x == 0) shared.schedule = MlaSchedule(units, segments, own);
    __syncthreads();
    const MlaSchedule& schedule = shared.schedule;
    MlaStream stream{0, false};
    int round = schedule.rounds() - 1;
    for (; round >= 0 && schedule.is_own(schedule.item(round)); --round)
        if (schedule.own_index(schedule.item(round)) < schedule.own)
            walk_own(shared, tree, round, stream);
    if (Config::small == Config::most || !small) walk_shared<Config, Config::most>(shared, tree, round, stream);
    else walk_shared<Config, Config::small>(shared, tree, round, stream);
}

// grid: a block a query, i.e. head of a row; kMergeThreads a block.
template <class Config>
DEVICE void mla_tree_attention_merge(const bf16* sums, const float2* stats, const Rows* rows, bf16* y) {
    pdl_launch_dependents();
    pdl_wait();
    const int query = blockIdx.x, row = query / Config::heads;
    if (row >= rows->count) return;
    merge_parts<Mla<Config>::queries, Config::latent>(sums + size_t(query) * Config::latent, stats + query,
                                                      segment_of(rows->position[row]) + 1, sum_column<Config>,
                                                      y + size_t(query) * Config::latent);
}

// ---- prompt rows -------------------------------------------------------------------------------------------------------------
// grid: (groups of neighbouring rows, parts of the heads). Rows of another sequence take another walk.
template <class Config>
DEVICE void mla_prompt_attention(const bf16* q, const bf16* pages, const Rows* table, bf16* y) {
    pdl_launch_dependents();
    pdl_wait();
    constexpr int most = Config::most;
    using M = Mla<Config>;
    using Tiles = MlaTiles<Config, most>;
    DYN_SMEM(memory);
    auto& shared = *reinterpret_cast<MlaShared<Config>*>(memory);
    const Rows rows = *table;
    if (threadIdx.x < 8) shared.changed[threadIdx.x] = 0;
    init_stream(shared.arrived);
    const int end = min(int(blockIdx.x + 1) * Tiles::rows, rows.count), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    MlaStream stream{0, false};
    for (int begin = blockIdx.x * Tiles::rows, next; begin < end; begin = next) {
        const int sequence = rows.sequence[begin];
        int last = 0;
        for (next = begin; next < end && rows.sequence[next] == sequence; ++next) last = max(last, rows.position[next]);
        const MlaQueries queries{nullptr, begin, next - begin, int(blockIdx.y) * Tiles::of_row * 8};
        const MlaKeys keys{pages, nullptr, rows.pages + size_t(sequence) * rows.pages_per_sequence, nullptr, 0x7fffffff, last + 1, -1};
        const int mine = rows.position[queries.row(min(warp, most - 1) / Tiles::of_row)];
        start_walk<Config>(shared, keys, 0, mine, stream);
        u32 query[Tiles::scored][M::quarter_steps][2];
        load_queries<Config, most>(q, queries, query);
        MlaSum<Config, most> sum;
        attend<Config, most>(shared, query, 0, stream, sum);
        __syncthreads();   // the last factors have been used
        if (warp < most && lane < 4) shared.factor[warp * 8 + lane * 2] = sum.total[0], shared.factor[warp * 8 + lane * 2 + 1] = sum.total[1];
        __syncthreads();
        for_each_query<Config, most>(queries, [&](int tile, int at, int odd) {
            const float total = shared.factor[tile * 8 + lane % 4 * 2 + odd];
#pragma unroll
            for (int i = 0; i < 2 * M::value_tiles; ++i)
                y[size_t(at) * Config::latent + (warp * M::value_tiles + i / 2) * 16 + i % 2 * 8 + lane / 4] =
                    to_bf16(sum.values[i / 2][tile][odd + i % 2 * 2] / total);
        });
    }
}

}  // namespace ddtree
