// Mixture of experts: y[r] = sum over slots j of gates[r][j] * expert[ids[r][j]](x[r]) + shared(x[r]), in four launches.
// For prompt rows, bf16 experts and widths that one launch cannot do; generated rows mostly have expert_decode.cuh.
//
//   group     ids -> the list of row tiles: an expert with up to 64 of the rows that chose it          one block
//   gate_up   act = silu(gate x) * (up x), fp32, rounded to bf16          a block: 8 gate and 8 up rows of an expert x a tile
//   down      part = down act, fp32                                       a warp: 16 rows of an expert x a tile
//   combine   y = slots in order, then the shared expert; one rounding    a thread: 8 columns of a row
//
//   x, y         [rows][hidden] bf16                    ids, gates   [rows][top_k] int, float
//   gate, up     [experts][width / 8] rows of panels along hidden (panel.cuh); INT4 or bf16
//   down         [experts][hidden / 16][panels of width][2] panels; of 16 rows the first has the even ones, the second the odd
//                ones, so that a thread's results are neighbours
//   shared_*     the same for one expert of bf16 weights, whose tiles are 64 successive rows
//   tiles        [1 + tiles] RowTile, the first holds their number
//   pairs        [rows * top_k] int: (row, slot) as row * top_k + slot, those of an expert side by side
//   act          [rows * top_k][width] bf16, shared_act [rows][shared_width] bf16
//   part         [rows][top_k + shared][hidden] float
//
// Every touched expert's weights are read once for up to 64 rows: up to eight column tiles of m16n8k16 share a panel. A warp
// copies its weights ahead of their use by bulk copies into its own ring, so no block barrier waits for memory. Items are
// dealt out by block number; no block waits for another.
//
// Row-invariant: a row is a column of B; K is cut by the shape of the weight alone (gate_up: one chain of mma for each
// warp, added in warp order; down: one chain), and `part` keeps slots apart until `combine` adds them in order. In which tile
// and column of it a row stands, or in which order blocks run, changes no bit.
// Test: tests/ops/test_expert_mlp.py
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/panel.cuh"
#include "ddtree/vec.cuh"

namespace ddtree {

struct alignas(16) RowTile {
    int expert, first, count, unused;   // rows: pairs[first .. first + count - 1]
};

template <bool VALUE>
struct Truth {   // a truth value as the type of an argument
    static constexpr bool value = VALUE;
};

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int tiles_of(int rows) { return ceil_div(rows, kTileRows); }
constexpr int panels_of(int k) { return ceil_div(k, kPanelK); }

// ---- group ------------------------------------------------------------------------------------------------------------------
// Counting sort of (row, slot) by expert. The order inside an expert is left to chance: it changes no result.
template <class Config>
DEVICE void expert_group(const int* ids, const Rows* rows, RowTile* tiles, int* pairs) {
    constexpr int kPerLane = (Config::experts + 31) / 32;
    SHARED_ARRAY(int, count, Config::experts);
    SHARED_ARRAY(int, next, Config::experts);
    const int thread = threadIdx.x, lane = thread % 32;
    pdl_launch_dependents();
    pdl_wait();
    const int chosen = live<Config::domain>(rows) * Config::top_k;
    for (int e = thread; e < Config::experts; e += Config::threads) count[e] = 0;
    __syncthreads();
    for (int i = thread; i < chosen; i += Config::threads) atomicAdd(&count[ids[i]], 1);
    __syncthreads();
    if (thread < 32) {   // a lane has kPerLane successive experts; prefix sums of their rows and of their tiles
        int my_rows = 0, my_tiles = 0;
        for (int e = lane * kPerLane; e < min((lane + 1) * kPerLane, Config::experts); ++e) {
            my_rows += count[e];
            my_tiles += tiles_of(count[e]);
        }
        int row = my_rows, tile = my_tiles;
        for (int distance = 1; distance < 32; distance *= 2) {
            const int rows_below = __shfl_up_sync(0xffffffffu, row, distance);
            const int tiles_below = __shfl_up_sync(0xffffffffu, tile, distance);
            if (lane >= distance) row += rows_below, tile += tiles_below;
        }
        if (lane == 31) tiles[0] = {0, 0, tile, 0};
        row -= my_rows, tile -= my_tiles;
        for (int e = lane * kPerLane; e < min((lane + 1) * kPerLane, Config::experts); ++e) {
            next[e] = row;
            for (int done = 0; done < count[e]; done += kTileRows)
                tiles[1 + tile++] = {e, row + done, min(count[e] - done, kTileRows), 0};
            row += count[e];
        }
    }
    __syncthreads();
    for (int i = thread; i < chosen; i += Config::threads) pairs[atomicAdd(&next[ids[i]], 1)] = i;
}

// ---- work items -------------------------------------------------------------------------------------------------------------
// An item is a unit of weight rows of an expert, for one of its tiles of rows. Items are numbered tile after tile, those of the
// shared expert first, and a worker gets a range of successive ones: neighbours share rows, which stay in L1. So that ranges
// take equally long, a shared item counts as several routed ones, by its bytes or its column tiles (routed ones mostly have one).
template <int UNITS, int SHARED_UNITS, int SHARED_BYTES, int ROUTED_BYTES>
struct Walk {
    const RowTile* tiles;    // of the routed experts
    int rows, shared_tiles;  // live rows, tiles of the shared expert
    int left;                // items of this worker, the current one included
    int tile, unit;          // the current item; shared tiles are numbered first
    bool shared;
    int expert, first, count;   // of the current tile

    DEVICE Walk(const RowTile* list, int live_rows, int worker, int workers)
        : tiles(list + 1), rows(live_rows), shared_tiles(SHARED_UNITS > 0 ? tiles_of(live_rows) : 0) {
        const int shared_items = shared_tiles * SHARED_UNITS, routed_items = live_rows > 0 ? list->count * UNITS : 0;
        const int weight = max(ceil_div(SHARED_BYTES, ROUTED_BYTES), ceil_div(min(live_rows, kTileRows), 8));
        const auto item_at = [&](int share) {   // the first item that starts at or past that share of all work
            const int work = u64(share) * (shared_items * weight + routed_items) / workers;
            return work > shared_items * weight ? work - shared_items * (weight - 1) : ceil_div(work, weight);
        };
        const int begin = item_at(worker), routed = begin - shared_items;
        constexpr int kSharedUnits = SHARED_UNITS > 0 ? SHARED_UNITS : 1;
        left = item_at(worker + 1) - begin;
        tile = routed >= 0 ? shared_tiles + routed / UNITS : begin / kSharedUnits;
        unit = routed >= 0 ? routed % UNITS : begin % kSharedUnits;
        if (left > 0) open();
    }

    // Goes to the next item; true when it has other rows.
    DEVICE bool advance() {
        --left;
        if (++unit < (shared ? SHARED_UNITS : UNITS)) return false;
        unit = 0, ++tile;
        if (left > 0) open();
        return true;
    }

private:
    DEVICE void open() {
        shared = tile < shared_tiles;
        if (shared) {
            expert = 0, first = tile * kTileRows, count = min(rows - first, kTileRows);
        } else {
            const RowTile t = tiles[tile - shared_tiles];
            expert = t.expert, first = t.first, count = t.count;
        }
    }
};

// The (row, slot) of a column of the walk's tile; the shared expert has one slot, so there it is the row.
template <class Walk>
DEVICE int pair_of(const Walk& walk, const int* pairs, int column) {
    const int i = walk.first + min(column, walk.count - 1);
    return walk.shared ? i : pairs[i];
}

// start(pair): the element at which that row of activations starts.
template <class Walk, class Start>
DEVICE Columns columns_of(const Walk& walk, const int* pairs, int lane, const Start& start) {
    Columns columns;
    columns.tiles = (walk.count + 7) / 8;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
        if (n >= columns.tiles) break;
        columns.at[n] = start(pair_of(walk, pairs, n * 8 + lane / 4)) + lane % 4 * 8;
    }
    return columns;
}

// ---- a warp's weights -------------------------------------------------------------------------------------------------------
// A warp's weights of one item: `panels` panels each from one or two places (second may be null), `most` of each to a slot.
struct Stretch {
    const u8 *one, *two;
    int panels, most;
    int bytes;   // of a panel
};

// The weights of a warp, item after item, through a ring of slots in shared memory that lane 0 keeps full by bulk copies. It
// walks ahead of the warp; weights(walk) says what an item needs.
template <class Config, class Walk, class Weights>
struct Stream {
    // Lane 0's place, in shared memory because the other lanes have no use for the registers.
    struct Ahead {
        Walk walk;    // the item that is asked for next
        int panel;    // of that item
        int filled;   // slots that were asked for
    };
    static constexpr int kSlots = Config::slots, kSlotBytes = Config::slot_bytes, kRing = kSlots * kSlotBytes;
    static constexpr int kBytes = kRing + 64 + kSlots * 8;   // of a warp: ring, place, one mbarrier a slot
    static_assert(sizeof(Ahead) <= 64 && kRing % 16 == 0, "room for the place, aligned");

    const Weights& weights;
    u8* const slots;
    const u32 bars;
    const int lane;
    const u64 policy;   // every weight is read once
    int taken = 0;      // slots that the warp has used

    DEVICE Stream(const Walk& walk, const Weights& weights, u8* memory, int lane)
        : weights(weights), slots(memory), bars(smem_u32(memory + kRing + 64)), lane(lane), policy(policy_evict_first()) {
        if (lane == 0) {
            ahead() = {walk, 0, 0};
            for (int i = 0; i < kSlots; ++i) mbar_init(bars + i * 8, 1);
            mbar_fence_init();
        }
        __syncwarp();
        for (int i = 0; i < kSlots; ++i) refill();
    }

    // use(panel of the item, slot, panel in the slot, panels in the slot) for every panel of the current item.
    template <int MOST, int UNROLL, class Use>
    DEVICE void for_each(int panels, const Use& use) {
        for (int done = 0; done < panels; done += MOST) {
            const int count = min(MOST, panels - done);
            const u8* const slot = take();
#pragma unroll UNROLL
            for (int i = 0; i < count; ++i) use(done + i, slot, i, count);
            __syncwarp();   // every lane has read the slot
            refill();
        }
    }

private:
    DEVICE Ahead& ahead() const { return *reinterpret_cast<Ahead*>(slots + kRing); }

    DEVICE void refill() {
        if (lane != 0) return;
        Ahead& at = ahead();
        if (at.walk.left <= 0) return;
        const Stretch from = weights(at.walk);
        const int count = min(from.most, from.panels - at.panel), bytes = count * from.bytes, slot = at.filled++ % kSlots;
        const u32 to = smem_u32(slots + slot * kSlotBytes), bar = bars + slot * 8;
        mbar_arrive_expect_tx(bar, from.two ? 2 * bytes : bytes);
        bulk_load(to, from.one + size_t(at.panel) * from.bytes, bytes, bar, policy);
        if (from.two) bulk_load(to + bytes, from.two + size_t(at.panel) * from.bytes, bytes, bar, policy);
        at.panel += count;
        if (at.panel == from.panels) at.panel = 0, at.walk.advance();
    }

    DEVICE const u8* take() {
        const int slot = taken % kSlots;
        mbar_wait(bars + slot * 8, taken / kSlots % 2);
        ++taken;
        return slots + slot * kSlotBytes;
    }
};

constexpr int kUnroll = 4;   // panels that overlap when there is one column tile

// ---- gate_up ----------------------------------------------------------------------------------------------------------------
struct GateUpWeights {
    const u8 *gate, *up, *shared_gate, *shared_up;
};

template <class Config>
struct GateUp {
    using Panel = typename PanelOf<Config::int4>::type;
    static constexpr int kUnits = Config::width / 8, kSharedUnits = Config::shared_width / 8;
    static constexpr int kPanels = panels_of(Config::hidden), kWarps = Config::warps;
    static constexpr int kSumTiles = 2;   // column tiles whose sums of all warps are in shared memory at once; twice
    static constexpr int kSums = 2 * kWarps * kSumTiles * 512;
    static_assert(kWarps <= kPanels, "every warp has a part of K");
    // Its worker is a block.
    using Walk = ddtree::Walk<kUnits, kSharedUnits, kPanels * Bf16Panel::kBytes, kPanels * Panel::kBytes>;

    using WarpMultiplier = Multiplier<Config::hidden % kPanelK != 0>;

    template <class AnyPanel>
    static constexpr int kMost = Config::slot_bytes / 2 / AnyPanel::kBytes;

    static DEVICE void run(const bf16* x, const GateUpWeights& w, const RowTile* tiles, const int* pairs, const Rows* rows,
                           bf16* act, bf16* shared_act) {
        DYN_SMEM(smem);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        pdl_launch_dependents();
        pdl_wait();
        Walk walk(tiles, live<Config::domain>(rows), blockIdx.x, gridDim.x);
        const int begin = warp * kPanels / kWarps, panels = (warp + 1) * kPanels / kWarps - begin;
        const auto weights = [&](const Walk& at) {
            const int row = at.expert * (at.shared ? kSharedUnits : kUnits) + at.unit;
            const int bytes = at.shared ? Bf16Panel::kBytes : Panel::kBytes;
            const size_t offset = (size_t(row) * kPanels + begin) * bytes;
            return Stretch{(at.shared ? w.shared_gate : w.gate) + offset, (at.shared ? w.shared_up : w.up) + offset, panels,
                           at.shared ? kMost<Bf16Panel> : kMost<Panel>, bytes};
        };
        using WarpStream = Stream<Config, Walk, decltype(weights)>;
        static_assert(kSums + kWarps * WarpStream::kBytes == Config::smem, "tiles/expert_mlp.py computes the same");
        WarpStream stream(walk, weights, smem + kSums + warp * WarpStream::kBytes, lane);
        WarpMultiplier multiplier;
        int round = 0;
        for (bool other_rows = true; walk.left > 0; other_rows = walk.advance()) {
            if (other_rows)
                multiplier.start(x, Config::hidden, begin, begin + panels, columns_of(walk, pairs, lane, [&](int pair) {
                    return u32(walk.shared ? pair : pair / Config::top_k) * Config::hidden;
                }));
            float sum[kColumnTiles][4] = {};
            if (walk.shared) multiply<Bf16Panel>(sum, stream, multiplier, lane);
            else multiply<Panel>(sum, stream, multiplier, lane);
            const auto store = [&](int column, float value) {
                if (column >= walk.count) return;
                const size_t pair = pair_of(walk, pairs, column);
                bf16* const row = walk.shared ? shared_act + pair * Config::shared_width : act + pair * Config::width;
                row[walk.unit * 8 + lane / 4] = to_bf16(value);
            };
            activate(reinterpret_cast<float4*>(smem), round, sum, multiplier.columns.tiles, warp, lane, store);
        }
    }

private:
    template <class AnyPanel, class Stream>
    static DEVICE void multiply(float (&sum)[kColumnTiles][4], Stream& stream, WarpMultiplier& multiplier, int lane) {
        const auto use = [&](auto one_tile, int panel, const u8* slot, int i, int count) {
            u32 a[4][4];
            AnyPanel::operands(slot + i * AnyPanel::kBytes, slot + (count + i) * AnyPanel::kBytes, lane, a);
            multiplier.template multiply<decltype(one_tile)::value>(sum, a, multiplier.begin + panel);
        };
        const auto use_one = [&](auto... at) { use(Truth<true>{}, at...); };
        const auto use_all = [&](auto... at) { use(Truth<false>{}, at...); };
        const int panels = multiplier.end - multiplier.begin;
        if (multiplier.columns.tiles == 1) stream.template for_each<kMost<AnyPanel>, kUnroll>(panels, use_one);
        else stream.template for_each<kMost<AnyPanel>, 1>(panels, use_all);
    }

    // Adds the warps' sums in warp order; store(column, silu(gate) * up) for unit row lane / 4. A round has one barrier: whoever
    // writes a half of `sums` again has passed the barrier of the round between, and with it all who read that half.
    template <class Store>
    static DEVICE void activate(float4* sums, int& round, const float (&sum)[kColumnTiles][4], int tiles, int warp, int lane,
                                const Store& store) {
#pragma unroll
        for (int base = 0; base < kColumnTiles; base += kSumTiles) {
            if (base >= tiles) break;
            float4* const half = sums + round++ % 2 * (kWarps * kSumTiles * 32);
#pragma unroll
            for (int n = 0; n < kSumTiles; ++n)
                if (base + n < tiles) half[(warp * kSumTiles + n) * 32 + lane] = as_float4(sum[base + n]);
            __syncthreads();
            for (int n = (warp + round) % kWarps; n < min(kSumTiles, tiles - base); n += kWarps) {   // the work goes around
                float4 total = half[n * 32 + lane];
#pragma unroll
                for (int i = 1; i < kWarps; ++i) total = total + half[(i * kSumTiles + n) * 32 + lane];
                const int column = (base + n) * 8 + lane % 4 * 2;   // gate in x, y and up in z, w of two columns
                store(column, silu(total.x) * total.z);
                store(column + 1, silu(total.y) * total.w);
            }
        }
    }

    static DEVICE float silu(float x) { return x / (1.f + expf(-x)); }
};

// ---- down -------------------------------------------------------------------------------------------------------------------
struct DownWeights {
    const u8 *down, *shared_down;
};

template <class Config>
struct Down {
    using Panel = typename PanelOf<Config::int4>::type;
    static constexpr bool kShared = Config::shared_width > 0;
    static constexpr int kUnits = Config::hidden / 16 / Config::group, kParts = Config::top_k + kShared;
    static constexpr int kPanels = panels_of(Config::width), kSharedPanels = panels_of(Config::shared_width);
    static constexpr int kWarps = Config::warps;
    static_assert(kUnits * Config::group * 16 == Config::hidden, "whole groups");
    // Its worker is a warp.
    using Walk = ddtree::Walk<kUnits, kShared ? kUnits : 0, kSharedPanels * Bf16Panel::kBytes, kPanels * Panel::kBytes>;

    using WarpMultiplier = Multiplier<(Config::width % kPanelK != 0 || Config::shared_width % kPanelK != 0)>;

    template <class AnyPanel>
    static constexpr int kMost = Config::slot_bytes / 2 / AnyPanel::kBytes;   // pairs of panels

    static DEVICE void run(const bf16* act, const bf16* shared_act, const DownWeights& w, const RowTile* tiles, const int* pairs,
                           const Rows* rows, float* part) {
        DYN_SMEM(smem);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        pdl_launch_dependents();
        pdl_wait();
        Walk walk(tiles, live<Config::domain>(rows), blockIdx.x * kWarps + warp, gridDim.x * kWarps);
        const auto weights = [&](const Walk& at) {
            const int panels = Config::group * (at.shared ? kSharedPanels : kPanels);
            const int bytes = 2 * (at.shared ? Bf16Panel::kBytes : Panel::kBytes);
            const size_t offset = (size_t(at.expert) * kUnits + at.unit) * panels * bytes;
            return Stretch{(at.shared ? w.shared_down : w.down) + offset, nullptr, panels,
                           at.shared ? kMost<Bf16Panel> : kMost<Panel>, bytes};
        };
        using WarpStream = Stream<Config, Walk, decltype(weights)>;
        static_assert(kWarps * WarpStream::kBytes == Config::smem, "tiles/expert_mlp.py computes the same");
        WarpStream stream(walk, weights, smem + warp * WarpStream::kBytes, lane);
        WarpMultiplier multiplier;
        for (bool other_rows = true; walk.left > 0; other_rows = walk.advance()) {
            if (other_rows) {
                const int width = walk.shared ? Config::shared_width : Config::width, end = walk.shared ? kSharedPanels : kPanels;
                multiplier.start(walk.shared ? shared_act : act, width, 0, end,
                                 columns_of(walk, pairs, lane, [&](int pair) { return u32(pair) * width; }));
            }
            if (walk.shared) multiply<Bf16Panel, kSharedPanels>(stream, multiplier, walk, pairs, part, lane);
            else multiply<Panel, kPanels>(stream, multiplier, walk, pairs, part, lane);
        }
    }

private:
    // The unit's groups of 16 outputs, one after the other.
    template <class AnyPanel, int PANELS, class Stream>
    static DEVICE void multiply(Stream& stream, WarpMultiplier& multiplier, const Walk& walk, const int* pairs, float* part,
                                int lane) {
        float sum[kColumnTiles][4] = {};
        const auto use = [&](auto one_tile, int at, const u8* slot, int i, int) {
            const int panel = at % PANELS, sixteen = walk.unit * Config::group + at / PANELS;
            u32 a[4][4];
            AnyPanel::operands(slot + 2 * i * AnyPanel::kBytes, slot + (2 * i + 1) * AnyPanel::kBytes, lane, a);
            multiplier.template multiply<decltype(one_tile)::value>(sum, a, panel);
            if (panel == PANELS - 1) store(sum, multiplier.columns.tiles, walk, sixteen, pairs, part, lane);
        };
        const auto use_one = [&](auto... at) { use(Truth<true>{}, at...); };
        const auto use_all = [&](auto... at) { use(Truth<false>{}, at...); };
        constexpr int kAll = Config::group * PANELS;
        if (multiplier.columns.tiles == 1) stream.template for_each<kMost<AnyPanel>, kUnroll>(kAll, use_one);
        else stream.template for_each<kMost<AnyPanel>, 1>(kAll, use_all);
    }

    // Stores the sums of 16 outputs and sets them to zero.
    static DEVICE void store(float (&sum)[kColumnTiles][4], int tiles, const Walk& walk, int sixteen, const int* pairs, float* part,
                             int lane) {
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
            if (n >= tiles) break;
#pragma unroll
            for (int c = 0; c < 2; ++c) {   // weight rows g and g + 8 are neighbouring outputs
                const int column = n * 8 + lane % 4 * 2 + c;
                if (column < walk.count) {
                    const int pair = pair_of(walk, pairs, column);
                    const size_t row = walk.shared ? pair * kParts + Config::top_k : pair + (kShared ? pair / Config::top_k : 0);
                    float* const to = part + row * Config::hidden + sixteen * 16 + lane / 4 * 2;
                    *reinterpret_cast<float2*>(to) = make_float2(sum[n][c], sum[n][c + 2]);
                }
                sum[n][c] = sum[n][c + 2] = 0.f;
            }
        }
    }
};

// ---- combine ----------------------------------------------------------------------------------------------------------------
template <class Config>
DEVICE void expert_combine(const float* gates, const float* part, const Rows* rows, bf16* y) {
    pdl_launch_dependents();
    pdl_wait();
    const int row = blockIdx.x, eight = blockIdx.y * Config::threads + threadIdx.x;
    if (row >= live<Config::domain>(rows) || eight >= Config::hidden / 8) return;
    const float* const parts = part + size_t(row) * (Config::top_k + Config::shared) * Config::hidden;
    Vec8 sum = Vec8::zero();
#pragma unroll
    for (int slot = 0; slot < Config::top_k; ++slot)
        sum = fma(gates[row * Config::top_k + slot], load8(parts + size_t(slot) * Config::hidden, eight), sum);
    if constexpr (Config::shared) sum = sum + load8(parts + size_t(Config::top_k) * Config::hidden, eight);
    store8(y + size_t(row) * Config::hidden, eight, sum);
}

}  // namespace ddtree
