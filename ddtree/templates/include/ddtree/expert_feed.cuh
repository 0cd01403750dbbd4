// A warp's ring of two slots in shared memory, which one lane fills with weights by bulk copies ahead of their use.
// Bites are numbered by position; position p lies in slot p % 2.
#pragma once
#include "ddtree/expert_list.cuh"

namespace ddtree {

template <class Config>
struct ExpertFeed {
    using P = ExpertPlan<Config>;

    const ExpertArgs& a;
    u8* const slots;
    const u32 bars;
    volatile int* const items;   // item of down in each slot, -1 behind the last
    const u64 policy;            // every weight is read once
    const int warp;
    int position = 0;            // of the bite that is taken next

    // Items of down, of the asking lane only: the next one of the shared expert; of the routed ones those left of a batch of
    // successive ones, the ticket that was fetched ahead, and the size of a batch.
    int shared_next = 0, next = 0, left = 0, ticket = 0, all = 0, batch = 1;

    DEVICE ExpertFeed(const ExpertArgs& args, u8* smem, int my_warp)
        : a(args), slots(smem + my_warp * 2 * P::kSlot), bars(smem_u32(smem + P::kBars + my_warp * 16)),
          items(reinterpret_cast<int*>(smem + P::kItems) + 2 * my_warp), policy(policy_evict_first()), warp(my_warp) {
        if (elect_one()) {
            mbar_init(bars, 1);
            mbar_init(bars + 8, 1);
            mbar_fence_init();
        }
        __syncwarp();
    }

    // ---- the taker: all lanes
    DEVICE const u8* take() const {
        mbar_wait(bars + position % 2 * 8, position / 2 % 2);
        return slots + position % 2 * P::kSlot;
    }
    DEVICE int item() const { return items[position % 2]; }

    // ---- the asker: one lane. Each fills the slot of a position
    DEVICE void shared_gate_up(int at, int item) const {
        const int unit = item / P::kSharedParts, panel = (item % P::kSharedParts * P::kWarps + warp) * P::kSharedTake;
        const u32 offset = u32(unit * P::kPanels + panel) * Bf16Panel::kBytes;
        copy(at, a.shared_gate + offset, a.shared_up + offset, P::kSharedTake * Bf16Panel::kBytes);
    }

    DEVICE void gate_up(int at, int expert, int unit, int bite) const {
        const size_t offset = size_t(u32(expert * P::kUnits + unit)) * (P::kPanels * Int4Panel::kBytes) +
                              (warp * P::kWarpPanels + bite * P::kFirstBite) * Int4Panel::kBytes;
        copy(at, a.gate + offset, a.up + offset, (bite ? P::kSecondBite : P::kFirstBite) * Int4Panel::kBytes);
    }

    // Items of down: those of the shared expert are dealt out by the warp's number, from the last warp on, since they take longer
    // the more rows there are. Routed ones come in tickets of up to four, about half of a warp's fair share: a batch mostly has
    // one tile, whose activations stay in registers.
    DEVICE void start_down(int tiles) {
        const int workers = gridDim.x * P::kWarps;
        ticket = blockIdx.x + gridDim.x * warp;
        shared_next = workers - 1 - ticket;
        all = tiles * P::kGroups;
        batch = max(1, min(4, all * 5 / (workers * 8)));
    }

    DEVICE void down(int at, const u16* tile) {
        if (P::kShared && shared_next < P::kSharedDownItems) {
            items[at % 2] = shared_next;
            shared_down(at, shared_next);
            shared_next += gridDim.x * P::kWarps;
            return;
        }
        if (left == 0) open_batch();
        const bool more = left > 0;
        items[at % 2] = more ? P::kSharedDownItems + next : -1;
        if (more) {
            const int expert = tile[next / P::kGroups] & 0xfff;
            copy(at, a.down + size_t(u32(expert * P::kGroups + next % P::kGroups)) * P::kDownBite, P::kDownBite);
            ++next, --left;
        } else {
            mbar_arrive(bars + at % 2 * 8);
        }
    }

private:
    DEVICE void shared_down(int at, int item) const {
        constexpr int kPair = 2 * Bf16Panel::kBytes, kParts = P::kDownParts > 0 ? P::kDownParts : 1;
        const int panel = item % kParts * P::kDownTake;
        const u8* const from = a.shared_down + u32((item / kParts) * P::kSharedDownPanels + panel) * kPair;
        copy(at, from, min(P::kDownTake, P::kSharedDownPanels - panel) * kPair);
    }

    DEVICE void open_batch() {
        next = ticket * batch;
        left = max(0, min(batch, all - next));
        if (left > 0) ticket = gridDim.x * P::kWarps + int(atomicAdd(&a.sync->items, 1u));
    }

    DEVICE void copy(int at, const u8* from, int bytes) const {
        const u32 bar = bars + at % 2 * 8;
        mbar_arrive_expect_tx(bar, bytes);
        bulk_load(smem_u32(slots) + at % 2 * P::kSlot, from, bytes, bar, policy);
    }

    DEVICE void copy(int at, const u8* one, const u8* two, int bytes) const {   // one behind the other
        const u32 bar = bars + at % 2 * 8, to = smem_u32(slots) + at % 2 * P::kSlot;
        mbar_arrive_expect_tx(bar, 2 * bytes);
        bulk_load(to, one, bytes, bar, policy);
        bulk_load(to + bytes, two, bytes, bar, policy);
    }
};

}  // namespace ddtree
