// Absorbed MLA attention of tree rows or prompt rows: one key-value head, keys latent + rope wide, values = their first
// `latent` columns.
//
//   q       [rows][heads][latent + rope] bf16          y  [rows][heads][latent] bf16
//   pages   [page][64][latent + rope] bf16             committed rows, through the page table
//   scratch [sequence][64][latent + rope] bf16         the tree's own rows
//   sums, stats  partial results by part (attention_merge.cuh); mla_tree_attention_merge makes y of them. Sums are bf16,
//                stored in the order of sum_column
//
// Positions are cut into segments at a fixed list of absolute positions, and a segment into pieces. The parts of a row are the
// segments before its own position's, then the pieces of that one up to its own. A part is walked in tiles of 32 keys
// (mla_tree_attention_tile.cuh). Parts wholly below the committed length are computed once for a group of rows. Those that
// reach past it (one or two) are walked for each row alone: committed rows, then the row's ancestors in position order,
// itself last. So every key stands in the lane in which plain decoding of that path would have it, and the row's bits are
// those of plain decoding. How many rows share a walk, their number and the grid never change a bit: row-invariant.
// Prompt rows find all their keys in pages and are walked from position 0 to the end without a cut.
// Tests: tests/ops/test_mla_tree_attention.py
#pragma once
#include "ddtree/mla_tree_attention_tile.cuh"
#include "ddtree/row_groups.cuh"

namespace ddtree {

// ---- the cuts: segments of 128 positions below 4,096, of 256 below 32,768, then of 1,024 ---------------------------------
DEVICE constexpr int segment_of(u32 position) {
    return position < 4096 ? position / 128 : position < 32768 ? 32 + (position - 4096) / 256 : 144 + (position - 32768) / 1024;
}
DEVICE constexpr int segment_begin(int segment) {
    return segment < 32 ? segment * 128 : segment < 144 ? 4096 + (segment - 32) * 256 : 32768 + (segment - 144) * 1024;
}

DEVICE constexpr int piece_length(int segment) { return segment < 144 ? 64 : 256; }   // at least as long as a tree is deep

struct MlaPlace {   // of a position
    int segment, piece;

    DEVICE explicit MlaPlace(int position) : segment(segment_of(position)) {
        piece = u32(position - segment_begin(segment)) / piece_length(segment);
    }
    DEVICE int part() const { return segment + piece; }
};

// ---- tree rows -------------------------------------------------------------------------------------------------------------
// Which items the blocks take. A *unit* is head tiles that walk the shared parts together. A unit has a team's place in every
// team, and teams take its parts in turn, to and fro: the last segment first, pieces behind the first segment; so who had long
// ones gets the short ones last. A block keeps its unit, and its queries, for all parts. Ranks behind the shared parts, and
// before them the blocks that are left over when teams are formed, take the rows' own parts.
struct MlaSchedule {
    int shared, own;     // the most parts that a unit shares; own items
    int team, teams;     // blocks of a team, teams
    int place, turn;     // of this block: in its team, and of its team. Spare blocks: below 0, and behind all shared parts
    int spare;
    int rounds, shared_rounds;   // of this block; shared items come first

    DEVICE MlaSchedule(int units, int shared, int own) : shared(shared), own(own) {
        team = min(units, int(gridDim.x));
        teams = gridDim.x / team;
        spare = gridDim.x - team * teams;
        place = blockIdx.x % team, turn = blockIdx.x / team;
        rounds = (shared * team + max(0, own - spare) + team * teams - 1) / (team * teams);
        shared_rounds = shared / teams;
        shared_rounds += rank(shared_rounds) < shared;
        if (turn == teams) place -= spare, turn = shared, rounds = 1, shared_rounds = 0;
    }
    DEVICE int rank(int round) const { return round * teams + (opaque(round) % 2 ? teams - 1 - turn : turn); }
    DEVICE int own_item(int round) const { return (rank(round) - shared) * team + place + spare; }
};

// Config, besides that of the walk: head_tiles of a row, rounded up to a power of two; own, small and most, the head tiles
// of a block: for one row's own parts, and for parts that rows share when the work is little and when it is much.
template <class Config>
struct MlaTreeShared {
    MlaShared<Config> walk;
    Rows rows;
    MlaSchedule schedule;
    int unit;                     // that this block walks for now
    int unit_segment, unit_rounds; // the segment of its committed length, and its rounds
    const int* table;             // its sequence's pages
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

template <class Config, int TILES, class Meant>
DEVICE void store_part(const MlaTree& tree, const MlaQueries& queries, int part, const MlaSum<Config, TILES>& sum, Meant meant) {
    constexpr int tiles = Mla<Config>::value_tiles;
    const u32 thread = opaque(threadIdx.x);
    const int lane = thread % 32, warp = thread / 32;
    const size_t first = size_t(part) * Mla<Config>::queries;
    bf16* const sums = tree.sums + first * Config::latent + (warp * 8 + lane / 4) * 2 * tiles;
    for_each_query<Config, TILES>(queries, meant, [&](int tile, int query, int odd) {
        bf16* to = sums + query * Config::latent;
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

DEVICE const int* table_of(const Rows& rows, int sequence) { return rows.pages + size_t(sequence) * rows.pages_per_sequence; }

// One item: a row, its first or second own part, and which of its heads. The first one has the committed length's position;
// when the row lies in the next segment, it is all of its segment.
template <class Config>
DEVICE void walk_own(MlaTreeShared<Config>& shared, const MlaTree& tree, int item) {
    using Tiles = MlaTiles<Config, Config::own>;
    const int row_item = item / Tiles::parts, second = row_item >= shared.rows.count;
    const u16* order = shared.groups.order + row_item - second * shared.rows.count;
    const MlaQueries queries{order, 0, 1, item % Tiles::parts * Tiles::of_row * 8};
    const int row = *order, sequence = shared.groups.sequence[row], position = shared.position[row];
    const int committed = shared.committed[row];
    const MlaPlace from(committed), to(position);
    const bool whole = from.segment < to.segment && !second;
    const int part = whole ? from.segment : from.segment < to.segment ? to.segment : from.part() + second;
    const int begin = whole ? segment_begin(part) : segment_begin(to.segment) + (part - to.segment) * piece_length(to.segment);
    if (begin > position) return;
    if (threadIdx.x == 0)
        for (int depth = position - committed, node = row; depth >= 0; --depth, node = shared.parent[node])
            shared.walk.path[depth] = shared.node[node];
    if (threadIdx.x < Config::own) shared.walk.last[threadIdx.x] = position;
    const PathKeys<Config> keys{tree.pages, tree.scratch + size_t(sequence) * kScratch * Mla<Config>::key,
                                table_of(shared.rows, sequence), shared.walk.path, committed,
                                min(position + 1, whole ? segment_begin(part + 1) : begin + piece_length(to.segment))};
    start_walk(shared.walk, keys, begin);
    u32 query[Tiles::scored][Mla<Config>::quarter_steps][2];
    load_queries<Config, Config::own>(tree.q, queries, query);
    MlaSum<Config, Config::own> sum;
    attend<Config, Config::own>(shared.walk, query, keys, begin, [] { return -1; }, sum);
    store_part<Config, Config::own>(tree, queries, part, sum, [](int) { return true; });
}

// This block's shared items of a unit of TILES head tiles, the last round first. Registers are scarce:
// what is needed before and after a walk comes from shared memory both times.
template <class Config, int TILES>
DEVICE void walk_shared(MlaTreeShared<Config>& shared, const MlaTree& tree) {
    using Tiles = MlaTiles<Config, TILES>;
    const auto queries = [&] {
        const int unit = shared.unit, group = unit / Tiles::parts;
        return MlaQueries{shared.groups.rows(group), 0, shared.groups.rows_of(group), unit % Tiles::parts * Tiles::of_row * 8};
    };
    const auto part = [&](int round) {
        const int rank = shared.schedule.rank(round), segments = shared.unit_segment;
        return rank < segments ? segments - 1 - rank : rank;
    };
    const auto begin = [&](int part) {
        const int over = part - shared.unit_segment;
        return segment_begin(part - max(0, over)) + max(0, over) * piece_length(shared.unit_segment);
    };
    u32 query[Tiles::scored][Mla<Config>::quarter_steps][2];
    for (int round = shared.unit_rounds - 1; round >= 0; round = opaque(round - 1)) {
        const int from = begin(part(round)), segment = shared.unit_segment;
        const int end = part(round) < segment ? segment_begin(part(round) + 1) : from + piece_length(segment);
        const auto following = [&] { return round > 0 ? begin(part(round - 1)) : -1; };
        const PageKeys<Config, false> keys{tree.pages, shared.table, end};
        if (round == shared.unit_rounds - 1) {
            start_walk(shared.walk, keys, from);
            load_queries<Config, TILES>(tree.q, queries(), query);
        }
        MlaSum<Config, TILES> sum;
        attend<Config, TILES>(shared.walk, query, keys, from, following, sum);
        const bool piece = part(round) >= shared.unit_segment;   // rows of the next segment have none
        store_part<Config, TILES>(tree, queries(), part(round), sum, [&](int row) {
            return !piece || segment_of(shared.position[row]) == shared.unit_segment;
        });
    }
}

template <class Config, int TILES>
DEVICE void walk_units(MlaTreeShared<Config>& shared, const MlaTree& tree) {
    constexpr int parts = MlaTiles<Config, TILES>::parts;
    for (int unit = shared.schedule.place; unit < shared.groups.count * parts; unit = shared.unit + shared.schedule.team) {
        __syncthreads();   // nobody needs the unit before
        if (threadIdx.x == 0) {
            const int row = *shared.groups.rows(unit / parts);
            const MlaPlace end(shared.committed[row]);
            shared.unit = unit;
            shared.unit_segment = end.segment;
            shared.unit_rounds = shared.schedule.shared_rounds;
            while (shared.unit_rounds > 0 && shared.schedule.rank(shared.unit_rounds - 1) >= end.part()) --shared.unit_rounds;
            shared.table = table_of(shared.rows, shared.groups.sequence[row]);
        }
        __syncthreads();
        walk_shared<Config, TILES>(shared, tree);
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
    for (int row = threadIdx.x; row < rows.count; row += kMlaThreads) {
        shared.position[row] = rows.position[row];
        shared.parent[row] = u8(rows.parent[row]);
        shared.node[row] = u8(rows.node[row]);
        shared.committed[row] = rows.committed[rows.sequence[row]];
    }
    sort_rows(shared.groups, rows);
    // What the smaller units would have to do, the most parts that rows share, whether a row has two of its own.
    constexpr int small_rows = MlaTiles<Config, Config::small>::rows, small_parts = MlaTiles<Config, Config::small>::parts;
    int little = 0, parts = 0, siblings = 0;
    bool two = false;
    for (int i = threadIdx.x % 32; i < rows.count; i += 32) {
        const int row = shared.groups.order[i];
        const MlaPlace from(shared.committed[row]), to(shared.position[row]);
        if (shared.groups.earlier[i] % small_rows == 0) little += from.part() * small_parts;
        parts = max(parts, from.part());
        siblings = max(siblings, int(shared.groups.siblings[i]));
        two |= from.segment < to.segment || from.piece < to.piece;
    }
    little = __reduce_add_sync(0xffffffffu, little);
    parts = __reduce_max_sync(0xffffffffu, parts);
    siblings = __reduce_max_sync(0xffffffffu, siblings);
    const int own = rows.count * MlaTiles<Config, Config::own>::parts * (1 + __any_sync(0xffffffffu, two));
    const bool small = little <= int(gridDim.x) || siblings <= small_rows;
    if (small) cut_groups<small_rows>(shared.groups, rows);
    else cut_groups<MlaTiles<Config, Config::most>::rows>(shared.groups, rows);
    const int units = shared.groups.count * (small ? small_parts : MlaTiles<Config, Config::most>::parts);
    if (threadIdx.x == 0) shared.schedule = MlaSchedule(units, parts, own);
    __syncthreads();
    const MlaSchedule& schedule = shared.schedule;
    for (int round = schedule.rounds - 1; round >= schedule.shared_rounds; --round)
        if (schedule.own_item(round) < own) walk_own(shared, tree, schedule.own_item(round));
    if (schedule.shared_rounds == 0) return;
    if (Config::small == Config::most || !small) walk_units<Config, Config::most>(shared, tree);
    else walk_units<Config, Config::small>(shared, tree);
}

// grid: (queries, i.e. heads of rows; slices); kMergeThreads a block.
template <class Config>
DEVICE void mla_tree_attention_merge(const bf16* sums, const float2* stats, const Rows* rows, bf16* y) {
    pdl_launch_dependents();
    pdl_wait();
    const int query = blockIdx.x, row = query / Config::heads;
    if (row >= rows->count) return;
    merge_parts<Mla<Config>::queries, Config::latent, Config::slices>(
        sums + size_t(query) * Config::latent, stats + query, MlaPlace(rows->position[row]).part() + 1, sum_column<Config>,
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
    const int end = min(int(blockIdx.x + 1) * Tiles::rows, rows.count);
    for (int begin = blockIdx.x * Tiles::rows, next; begin < end; begin = next) {
        const u32 thread = opaque(threadIdx.x);
        const int lane = thread % 32, warp = thread / 32, sequence = rows.sequence[begin];
        int last = 0;
        for (next = begin; next < end && rows.sequence[next] == sequence; ++next) last = max(last, rows.position[next]);
        const MlaQueries queries{nullptr, begin, next - begin, int(blockIdx.y) * Tiles::of_row * 8};
        const PageKeys<Config, true> keys{pages, table_of(*table, sequence), last + 1};
        if (lane == 0 && warp < most) shared.last[warp] = rows.position[queries.row(warp / Tiles::of_row)];
        start_walk(shared, keys, 0);
        u32 query[Tiles::scored][M::quarter_steps][2];
        load_queries<Config, most>(q, queries, query);
        MlaSum<Config, most> sum;
        attend<Config, most>(shared, query, keys, 0, [] { return -1; }, sum);
        __syncthreads();   // the last factors have been used
        if (warp < most && lane < 4) shared.factor[warp * 8 + lane * 2] = sum.total[0], shared.factor[warp * 8 + lane * 2 + 1] = sum.total[1];
        __syncthreads();
        for_each_query<Config, most>(queries, [](int) { return true; }, [&](int tile, int at, int odd) {
            const float total = shared.factor[tile * 8 + lane % 4 * 2 + odd];
            bf16* const to = y + size_t(at) * Config::latent + warp * M::value_tiles * 16 + lane / 4;
#pragma unroll
            for (int i = 0; i < 2 * M::value_tiles; ++i)
                to[i / 2 * 16 + i % 2 * 8] = to_bf16(sum.values[i / 2][tile][odd + i % 2 * 2] / total);
        });
    }
}

}  // namespace ddtree
