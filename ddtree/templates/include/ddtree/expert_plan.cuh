// The numbers of the decode kernel of expert_mlp (expert_decode.cuh): how the work is cut, and the map of shared memory.
// All follow from the shapes of the weights, so that the sums do.
#pragma once
#include "ddtree/domain.cuh"
#include "ddtree/panel.cuh"

namespace ddtree {

// A bite is what a warp copies and multiplies at once: one slot of its ring.
//
//   routed gate_up   a unit is 8 gate and 8 up rows of an expert. Each warp of a block has its share of K, in two bites
//   routed down      an item is `group` times 16 rows of an expert: one bite of a warp
//   shared gate_up   an item is a unit and a part of K: `kSharedTake` panels of it are one bite of a warp
//   shared down      an item is 16 rows and up to two panels of K: one bite of a warp
template <class Config>
struct ExpertPlan {
    static constexpr int kMostRows = 64, kWarps = Config::warps, kThreads = 32 * kWarps, kTopK = Config::top_k;

    static constexpr int kPanels = Config::hidden / kPanelK, kWarpPanels = kPanels / kWarps;
    static constexpr int kFirstBite = kWarpPanels > 2 ? (kWarpPanels + 3) / 4 * 2 : 1, kSecondBite = kWarpPanels - kFirstBite;
    static constexpr int kUnits = Config::width / 8;   // of an expert
    static constexpr int kDownPanels = Config::width / kPanelK, kGroups = Config::hidden / 16 / Config::group;
    static constexpr int kDownBite = Config::group * kDownPanels * 2 * Int4Panel::kBytes;

    static constexpr bool kShared = Config::shared_width > 0;
    static constexpr int kSharedTake = kPanels % (2 * kWarps) == 0 ? 2 : 1, kSharedParts = kPanels / kWarps / kSharedTake;
    static constexpr int kSharedUnits = Config::shared_width / 8, kSharedItems = kSharedUnits * kSharedParts;
    static constexpr int kSharedDownPanels = Config::shared_width / kPanelK, kDownTake = kSharedDownPanels > 1 ? 2 : 1;
    static constexpr int kDownParts = (kSharedDownPanels + kDownTake - 1) / kDownTake;
    static constexpr int kSharedDownItems = Config::hidden / 16 * kDownParts;
    static constexpr int kParts = kTopK + kDownParts;   // terms of a value of y

    static_assert(Config::hidden % (kPanelK * kWarps) == 0 && kWarpPanels >= 2, "every warp has two bites of whole panels");
    static_assert(Config::width % kPanelK == 0 && Config::shared_width % kPanelK == 0, "whole panels");
    static_assert(kGroups * Config::group * 16 == Config::hidden, "whole groups");
    static_assert(2 * kFirstBite * Int4Panel::kBytes <= Config::slot_bytes && kDownBite <= Config::slot_bytes, "a bite fits");
    static_assert(!kShared || 4 * Bf16Panel::kBytes <= Config::slot_bytes, "two pairs of panels fit");

    // ---- row tiles: an expert and up to eight of its rows
    static constexpr int kPairs = kMostRows * kTopK, kSpread = Config::experts + kPairs / 8;
    static constexpr int kMostTiles = kSpread < kPairs ? kSpread : kPairs;

    // ---- shared memory, in bytes from its start
    static constexpr int kSlot = Config::slot_bytes, kBars = kWarps * 2 * kSlot, kItems = kBars + kWarps * 16;
    static constexpr int kSums = kItems + kWarps * 8, kSumBytes = 2 * kWarps * 512;   // two rounds
    static constexpr int kListBytes = Config::experts * 12;                           // of the list's making, before the sums
    static constexpr int kTiles = kSums + (kSumBytes > kListBytes ? kSumBytes : kListBytes);
    static constexpr int kTilePairs = kTiles + kMostTiles * 2, kQueue = (kTilePairs + kMostTiles * 16 + 15) / 16 * 16;
    static constexpr int kBytes = kQueue + 64;   // four unit numbers, eight words of the list, a word of the end
    static_assert(kBytes == Config::smem, "tiles/expert_mlp.py computes the same");
};

// Counters in global memory, each on a line of its own; all zero between launches.
struct ExpertSync {
    u32 units, pad0[31];     // tickets of gate_up
    u32 items, pad1[31];     // tickets of down
    u32 blocks, pad2[31];    // blocks that need no activation any more
};

struct ExpertArgs {
    const bf16* x;                // [rows][hidden]
    const int* ids;               // [rows][top_k]
    const float* gates;           // [rows][top_k]
    const u8 *gate, *up, *down;   // panels, see expert_mlp.cuh
    const u8 *shared_gate, *shared_up, *shared_down;
    const Rows* rows;
    bf16* act;                    // [rows * top_k][width]
    float* part;                  // [rows][kParts][hidden]
    bf16* shared_act;             // [rows][shared_width]
    float* shared_sums;           // [shared unit][column tile][part of K][lane][4]
    ExpertSync* sync;
    bf16* y;                      // [rows][hidden]
};

}  // namespace ddtree
