// Mixture of experts for up to 64 rows, in one launch whose blocks are all resident (expert_mlp.cuh has the meaning, the
// weights' layouts and the launches for more rows or other shapes; expert_plan.cuh how the work is cut).
//
//   shared gate_up   block b has items b, b + blocks, ..: partial sums over a part of K for all rows. Their weights depend on
//                    nothing, so the first copies run before pdl_wait
//   gate_up          a block takes units of the row tiles (expert_list.cuh), its warps a share of K each
//   down             a warp takes items, the shared expert's first
//   combine          slots in order, then the shared expert's parts; one rounding
//
// Who computes something is decided by tickets, what is computed never is. The first unit of a block is its number: it belongs
// to an expert of row 0, so that its weights are asked for after one load. A warp's ring runs straight on from one phase into
// the next; the first weights of down are there before the last activation.
//
// No barrier and no fence between phases: act, shared_act, shared_sums and part hold all ones, which no sum gives, until the
// data is there, and readers look at the data itself. Who reads a sum alone writes the ones again; the last block to be done
// with the activations restores those and the counters, so that the next launch finds all as this one did.
//
// Row-invariant: a row is a column of an mma; K is cut by the weight's shape alone (routed gate_up: two chains a warp, for even
// and odd 32 k, added, then the warps in order; down: two chains, added; shared: one chain a bite, warps in order, parts in
// order), and `part` keeps slots apart until `combine` adds them in order.
// Test: tests/ops/test_expert_decode.py
#pragma once
#include "ddtree/expert_feed.cuh"

namespace ddtree {

DEVICE float silu_fast(float x) { return x / (1.f + __expf(-x)); }

// Whether a word of eight bf16, or of four floats, is still all ones.
DEVICE bool has_empty_bf16(const uint4& v) {
    const u32 top = max_u16x2(max_u16x2(v.x, v.y), max_u16x2(v.z, v.w));
    return (top & 0xffffu) == 0xffffu || top >> 16 == 0xffffu;
}
DEVICE uint4 empty_word() { return make_uint4(0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu); }
DEVICE bool has_empty_float(const uint4& v) { return max(max(v.x, v.y), max(v.z, v.w)) == 0xffffffffu; }

// COUNT sums of four floats, `stride` floats apart, once all are there; writes the ones again.
template <int COUNT>
DEVICE void take_sums(float* from, int stride, float4 (&sums)[COUNT]) {
    uint4 v[COUNT];
    for (bool missing = true; missing;) {
        missing = false;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] = load16_relaxed(from + i * stride);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) missing |= has_empty_float(v[i]);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        store16_relaxed(from + i * stride, empty_word());
        sums[i] = bitcast<float4>(v[i]);
    }
}

template <class Config>
struct ExpertDecode {
    using P = ExpertPlan<Config>;

    const ExpertArgs& a;
    u8* const smem;
    const int warp, lane, g, t;
    const RowList<Config> list;
    ExpertFeed<Config> feed;
    int rows = 0, units = 0;   // live rows; units of all row tiles
    int round = 0;             // of sums over warps

    DEVICE ExpertDecode(const ExpertArgs& args, u8* memory)
        : a(args), smem(memory), warp(warp_index()), lane(threadIdx.x % 32), g(lane / 4), t(lane % 4), list(memory),
          feed(args, memory, warp) {}

    DEVICE void run() {
        const int block = blockIdx.x, blocks = gridDim.x;
        const int items = block < P::kSharedItems ? (P::kSharedItems - 1 - block) / blocks + 1 : 0;   // of shared gate_up
        if (elect_one())
            for (int i = 0; i < min(items, 2); ++i) feed.shared_gate_up(i, block + i * blocks);
        pdl_wait();
        const int wave = min(blocks, P::kUnits * P::kTopK);   // units of row 0 that are taken by block number
        const bool early = block < wave;
        const int expert = a.ids[early ? block / P::kUnits : 0];
        rows = live<Config::domain>(a.rows);
        if (rows == 0) {
            for (; feed.position < min(items, 2); ++feed.position) feed.take();
            return;
        }
        SharedX x;
        if (items > 0) x = load_shared_x(block, 0);   // small loads are on their way before the flood of weights
        int ids[RowList<Config>::kPerThread];
#pragma unroll
        for (int i = 0; i < RowList<Config>::kPerThread; ++i) {
            const int at = threadIdx.x + i * P::kThreads;
            ids[i] = at < rows * P::kTopK ? a.ids[at] : -1;
        }
        const auto ask = [&](int at) {   // of the positions before the list is known; one lane
            if (at < items) feed.shared_gate_up(at, block + at * blocks);
            else if (early) feed.gate_up(at, expert, block % P::kUnits, at - items);
        };
        if (elect_one())
            for (int at = items; at < 2; ++at) ask(at);
        for (int i = 0; i < items; ++i) {
            if (i > 0) x = load_shared_x(block + i * blocks, 0);
            shared_gate_up(block + i * blocks, x, ask);
        }
        units = list.make(ids, rows) * P::kUnits;
        if (elect_one()) feed.start_down(units / P::kUnits);
        if (P::kShared) activate_shared();
        gate_up(wave, early);
        down();
        volatile u32* const arrived = reinterpret_cast<volatile u32*>(smem + P::kQueue) + 12;
        __syncthreads();   // this block reads no activation any more
        if (threadIdx.x == 0) arrived[0] = atom_add_acq_rel(&a.sync->blocks, 1);
        combine();
        __syncthreads();
        if (arrived[0] + 1 == u32(blocks)) restore();
    }

private:
    // ---- sums over warps: one barrier each, since a half of the place is written again two rounds later
    DEVICE float4* sums_of_round() const {
        return reinterpret_cast<float4*>(smem + P::kSums) + round % 2 * (P::kWarps * 32) + lane;
    }

    DEVICE float4 sum_of_warps() const {
        const float4* const sums = sums_of_round();
        float4 total = sums[0];
#pragma unroll
        for (int w = 1; w < P::kWarps; ++w) total = total + sums[w * 32];
        return total;
    }

    // ---- shared gate_up
    struct SharedX {   // of a warp's part of K and a column tile
        Activations panel[P::kSharedTake];
    };

    DEVICE SharedX load_shared_x(int item, int tile) const {
        const int k = (item % P::kSharedParts * P::kWarps + warp) * P::kSharedTake * kPanelK + 8 * t;
        const bf16* const x = a.x + size_t(min(8 * tile + g, rows - 1)) * Config::hidden + k;
        SharedX made;
#pragma unroll
        for (int i = 0; i < P::kSharedTake; ++i) made.panel[i] = load_x(x, i);
        return made;
    }

    // x: of the first column tile
    template <class Ask>
    DEVICE void shared_gate_up(int item, SharedX x, const Ask& ask) {
        const u8* const slot = feed.take();
        u32 w[P::kSharedTake][4][4];
#pragma unroll
        for (int i = 0; i < P::kSharedTake; ++i)
            Bf16Panel::operands(slot + i * Bf16Panel::kBytes, slot + (P::kSharedTake + i) * Bf16Panel::kBytes, lane, w[i]);
        __syncwarp();   // every lane has read the slot
        if (elect_one()) ask(feed.position + 2);
        __syncwarp();
        ++feed.position;
        const int unit = item / P::kSharedParts, part = item % P::kSharedParts;
        for (int n = 0; 8 * n < rows; ++n) {
            const SharedX next = load_shared_x(item, n + 1);
            float sum[4] = {};
#pragma unroll
            for (int i = 0; i < P::kSharedTake; ++i) multiply_tile(sum, w[i], x.panel[i]);
            x = next;
            sums_of_round()[warp * 32] = as_float4(sum);
            __syncthreads();
            if (warp == n % P::kWarps) store16_relaxed(shared_sum(unit, n, part), bitcast<uint4>(sum_of_warps()));
            ++round;
        }
    }

    DEVICE float* shared_sum(int unit, int tile, int part) const {
        return a.shared_sums + (size_t((unit * 8 + tile) * P::kSharedParts + part) * 32 + lane) * 4;
    }

    // The shared expert's activations: adds the parts of K in order. A warp takes a unit and a column tile; the last blocks come
    // first, which had no item of shared gate_up.
    DEVICE void activate_shared() const {
        const int tiles = (rows + 7) / 8;
        const int worker = gridDim.x - 1 - blockIdx.x + gridDim.x * warp;
        for (int i = worker; i < P::kSharedUnits * tiles; i += gridDim.x * P::kWarps) {
            const int unit = i / tiles, tile = i % tiles;
            float4 parts[P::kSharedParts];
            take_sums(shared_sum(unit, tile, 0), 128, parts);
            float4 total = parts[0];
#pragma unroll
            for (int part = 1; part < P::kSharedParts; ++part) total = total + parts[part];
            store_activation(a.shared_act + unit * 8 + g, Config::shared_width, total, [&](int c) {
                return 8 * tile + 2 * t + c < rows ? 8 * tile + 2 * t + c : -1;
            });
        }
    }

    // silu(gate) * up of this thread's two columns; row_of(0 or 1) is where one is stored, or -1.
    template <class RowOf>
    static DEVICE void store_activation(bf16* to, int width, float4 v, const RowOf& row_of) {
        const int first = row_of(0), second = row_of(1);
        if (first >= 0) store_relaxed(to + size_t(first) * width, to_bf16(silu_fast(v.x) * v.z));
        if (second >= 0) store_relaxed(to + size_t(second) * width, to_bf16(silu_fast(v.y) * v.w));
    }

    // ---- gate_up
    DEVICE int count_of(int tile) const { return list.tile[tile] >> 12; }
    DEVICE int expert_of(int unit) const { return list.tile[unit / P::kUnits] & 0xfff; }
    // The (row, slot) of a column; columns without a row repeat the first one.
    DEVICE int pair_of(int tile, int column, int count) const { return list.pair[8 * tile + (column < count ? column : 0)]; }

    // Where this lane's x of the warp's share of K starts, of column g of the unit's tile.
    DEVICE const bf16* columns(int unit) const {
        const int tile = unit / P::kUnits, row = pair_of(tile, g, count_of(tile)) / P::kTopK;
        return a.x + size_t(row) * Config::hidden + warp * (P::kWarpPanels * kPanelK) + 8 * t;
    }

    static DEVICE Activations load_x(const bf16* x, int panel) {
        return {load16(x + panel * kPanelK), load16(x + panel * kPanelK + 32)};
    }

    // Even and odd 32 k in chains of their own, since an mma waits for the one before.
    static DEVICE void multiply(float (&sum)[2][4], const u32 (&w)[4][4], const Activations& x) {
        const u32 b[4][2] = {{x.j0.x, x.j0.y}, {x.j0.z, x.j0.w}, {x.j1.x, x.j1.y}, {x.j1.z, x.j1.w}};
        mma_bf16_16816(sum[0], w[0], b[0]);
        mma_bf16_16816(sum[0], w[1], b[1]);
        mma_bf16_16816(sum[1], w[2], b[2]);
        mma_bf16_16816(sum[1], w[3], b[3]);
    }

    // The x of two panels ahead is asked for before a panel is multiplied, past the unit's end that of the next unit.
    struct Ahead {
        const bf16 *x, *next_x;
        Activations now, soon;
    };

    template <int FIRST, int COUNT>
    DEVICE void bite(float (&sum)[2][4], Ahead& ahead) const {
        const u8* const slot = feed.take();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int third = FIRST + i + 2;
            const bool past = third >= P::kWarpPanels;
            const Activations later = load_x(past ? ahead.next_x : ahead.x, past ? third - P::kWarpPanels : third);
            u32 w[4][4];
            Int4Panel::operands(slot + i * Int4Panel::kBytes, slot + (COUNT + i) * Int4Panel::kBytes, lane, w);
            multiply(sum, w, ahead.now);
            ahead.now = ahead.soon, ahead.soon = later;
        }
        __syncwarp();
    }

    // Tickets are 2^shift successive units, which mostly share a tile, so that x stays in L1. After the wave of row 0, the first
    // ticket of a block is its number.
    DEVICE void gate_up(int wave, bool early) {
        const int block = blockIdx.x, blocks = gridDim.x;
        const int shift = units >= 12 * blocks ? 2 : units >= 6 * blocks ? 1 : 0, last = (1 << shift) - 1;
        const int tickets = shift ? blocks : 2 * blocks - wave;   // that are given by block number
        int unit = wave + (block << shift), after = shift ? unit + 1 : blocks + block;
        if (early) after = unit, unit = block;
        const auto ask = [&](int at, int of, int bite) {
            if (of < units) feed.gate_up(at, expert_of(of), of % P::kUnits, bite);
            else feed.down(at, list.tile);
        };
        if (!early && elect_one())
            for (int i = 0; i < 2; ++i) ask(feed.position + i, unit, i);
        volatile int* const queue = reinterpret_cast<volatile int*>(smem + P::kQueue);
        if (unit < units) {
            Ahead ahead;
            ahead.x = columns(unit);
            ahead.now = load_x(ahead.x, 0), ahead.soon = load_x(ahead.x, 1);
            for (;; unit = after, after = queue[(round - 1) % 4], ahead.x = ahead.next_x) {
                int fetched = after + 1;   // the unit after the next: of the same ticket, or of a new one
                if (threadIdx.x == 0 && after < units && ((after - wave) & last) == last)
                    fetched = wave + (int(tickets + atomicAdd(&a.sync->units, 1u)) << shift);
                ahead.next_x = columns(after < units ? after : unit);
                float sum[2][4] = {};
                bite<0, P::kFirstBite>(sum, ahead);
                if (elect_one()) ask(feed.position + 2, after, 0);
                __syncwarp();
                ++feed.position;
                bite<P::kFirstBite, P::kSecondBite>(sum, ahead);
                if (elect_one()) ask(feed.position + 2, after, 1);
                __syncwarp();
                ++feed.position;
                sums_of_round()[warp * 32] = as_float4(sum[0]) + as_float4(sum[1]);
                if (threadIdx.x == 0) queue[round % 4] = fetched;
                __syncthreads();
                if (warp == round % P::kWarps) {
                    const int tile = unit / P::kUnits, count = count_of(tile);
                    store_activation(a.act + unit % P::kUnits * 8 + g, Config::width, sum_of_warps(), [&](int c) {
                        return 2 * t + c < count ? int(list.pair[8 * tile + 2 * t + c]) : -1;
                    });
                }
                ++round;
                if (after >= units) break;
            }
        }
    }

    // ---- down
    // COUNT words of activations, 32 elements apart; past `words` the first ones again.
    template <int COUNT>
    struct Words {
        uint4 at[COUNT];
    };
    template <int COUNT>
    static DEVICE Words<COUNT> load_words(const bf16* act, int words = COUNT) {
        Words<COUNT> made;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) made.at[i] = load16_relaxed(act + 32 * (i < words ? i : i - words));
        return made;
    }

    // Whether all words are there, for all lanes.
    template <int COUNT>
    static DEVICE bool complete(const Words<COUNT>& b) {
        bool missing = false;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) missing |= has_empty_bf16(b.at[i]);
        return __all_sync(0xffffffffu, !missing);
    }

    struct Tile {
        int index = -1, count = 0;
        Words<2 * P::kDownPanels> b;   // the activations of column g
        float *first, *second;         // where the results of columns 2 t and 2 t + 1 start
    };

    DEVICE void down() {
        const u8* slot = feed.take();
        int item = feed.item();
        while (P::kShared && item >= 0 && item < P::kSharedDownItems) {   // they come first
            shared_down(item, slot);
            slot = feed.take(), item = feed.item();
        }
        Tile tile;
        while (item >= 0) {
            routed_down(item - P::kSharedDownItems, slot, tile);
            slot = feed.take(), item = feed.item();
        }
    }

    DEVICE void refill_down() {
        __syncwarp();   // every lane has read the slot
        if (elect_one()) feed.down(feed.position + 2, list.tile);
        __syncwarp();
        ++feed.position;
    }

    DEVICE float* part_of(int row, int part) const { return a.part + (size_t(row) * P::kParts + part) * Config::hidden + 2 * g; }

    DEVICE void routed_down(int item, const u8* slot, Tile& tile) {
        constexpr int kPanels = Config::group * P::kDownPanels, kEarly = kPanels < 2 ? kPanels : 2;   // dequantised before a wait
        u32 early[kEarly][4][4];
        const auto load = [&](int i, u32 (&w)[4][4]) {
            const u8* const panels = slot + i * (2 * Int4Panel::kBytes);
            Int4Panel::operands(panels, panels + Int4Panel::kBytes, lane, w);
        };
#pragma unroll
        for (int i = 0; i < kEarly; ++i) load(i, early[i]);
        if (item / P::kGroups != tile.index) open(item / P::kGroups, tile);
        float sum[Config::group][2][4] = {};
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
            const int j = i % P::kDownPanels;
            const Activations x = {tile.b.at[2 * j], tile.b.at[2 * j + 1]};
            u32 w[4][4];
            if (i >= kEarly) load(i, w);
            multiply(sum[i / P::kDownPanels], i < kEarly ? early[i % kEarly] : w, x);
        }
        refill_down();
        const int output = item % P::kGroups * (Config::group * 16);
#pragma unroll
        for (int i = 0; i < Config::group; ++i) {   // weight rows g and g + 8 are neighbouring outputs
            const float4 y = as_float4(sum[i][0]) + as_float4(sum[i][1]);
            store_outputs(tile.first + output + i * 16, tile.second + output + i * 16, y, tile.count);
        }
    }

    DEVICE void store_outputs(float* first, float* second, float4 y, int count) const {
        if (2 * t < count) store8_relaxed(first, make_uint2(bitcast<u32>(y.x), bitcast<u32>(y.z)));
        if (2 * t + 1 < count) store8_relaxed(second, make_uint2(bitcast<u32>(y.y), bitcast<u32>(y.w)));
    }

    // Waits for the activations of a tile.
    DEVICE void open(int index, Tile& tile) const {
        tile.index = index, tile.count = count_of(index);
        const bf16* const act = a.act + size_t(pair_of(index, g, tile.count)) * Config::width + 8 * t;
        do tile.b = load_words<2 * P::kDownPanels>(act);
        while (!complete(tile.b));
        const auto start = [&](int column) {
            const int pair = pair_of(index, column, tile.count);
            return part_of(pair / P::kTopK, pair % P::kTopK);
        };
        tile.first = start(2 * t), tile.second = start(2 * t + 1);
    }

    DEVICE void shared_down(int item, const u8* slot) {
        constexpr int kTake = P::kDownTake, kParts = P::kDownParts > 0 ? P::kDownParts : 1;
        const int part = item % kParts, output = item / kParts * 16;
        const bool whole = P::kSharedDownPanels % kTake == 0 || part + 1 < kParts;   // else the last bite has a panel less
        u32 w[kTake][4][4];
#pragma unroll
        for (int i = 0; i < kTake; ++i) {
            const u8* const at = slot + (whole ? i : 0) * (2 * Bf16Panel::kBytes);
            Bf16Panel::operands(at, at + Bf16Panel::kBytes, lane, w[i]);
        }
        refill_down();
        const bf16* const act = a.shared_act + part * (kTake * kPanelK) + 8 * t;
        const auto load = [&](int n) {
            return load_words<2 * kTake>(act + size_t(min(8 * n + g, rows - 1)) * Config::shared_width, whole ? 2 * kTake : 2);
        };
        Words<2 * kTake> b = load(0);
        for (int n = 0; 8 * n < rows; ++n) {
            const Words<2 * kTake> next = load(n + 1);
            while (!complete(b)) b = load(n);
            float sum[4] = {};
            multiply_tile(sum, w[0], {b.at[0], b.at[1]});
            if (kTake > 1 && whole) multiply_tile(sum, w[kTake - 1], {b.at[2 * kTake - 2], b.at[2 * kTake - 1]});
            b = next;
            const int first = min(8 * n + 2 * t, rows - 1), second = min(8 * n + 2 * t + 1, rows - 1);
            store_outputs(part_of(first, P::kTopK + part) + output, part_of(second, P::kTopK + part) + output, as_float4(sum),
                          rows - 8 * n);
        }
    }

    // ---- combine: a warp takes 128 columns of a row
    DEVICE void combine() const {
        constexpr int kPieces = Config::hidden / 128;
        for (int i = blockIdx.x + gridDim.x * warp; i < rows * kPieces; i += gridDim.x * P::kWarps) {
            const int row = i / kPieces, column = i % kPieces * 128 + lane * 4;
            float4 parts[P::kParts];
            take_sums(a.part + size_t(row) * P::kParts * Config::hidden + column, Config::hidden, parts);
            float4 y = make_float4(0.f, 0.f, 0.f, 0.f), shared = y;
#pragma unroll
            for (int slot = 0; slot < P::kTopK; ++slot) {
                const float gate = a.gates[row * P::kTopK + slot];
                const float4 v = parts[slot];
                y = make_float4(fmaf(gate, v.x, y.x), fmaf(gate, v.y, y.y), fmaf(gate, v.z, y.z), fmaf(gate, v.w, y.w));
            }
#pragma unroll
            for (int i = P::kTopK; i < P::kParts; ++i) shared = i == P::kTopK ? parts[i] : shared + parts[i];
            if constexpr (P::kShared) y = y + shared;
            bf16* const to = a.y + size_t(row) * Config::hidden + column;
            *reinterpret_cast<uint2*>(to) = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
        }
    }

    // By the last block, when no other reads activations or takes tickets.
    DEVICE void restore() const {
        const auto empty = [&](bf16* place, int elements) {
            for (int i = 8 * threadIdx.x; i < elements; i += 8 * P::kThreads) store16_relaxed(place + i, empty_word());
        };
        empty(a.act, rows * P::kTopK * Config::width);
        empty(a.shared_act, rows * Config::shared_width);
        if (threadIdx.x == 0) a.sync->units = a.sync->items = a.sync->blocks = 0;
    }
};

}  // namespace ddtree
