"""Faults in the list of row tiles, the order of copies, the sums, what blocks wait for, and what the launch leaves behind."""

MUTATIONS = [
    ("expert_list.cuh", "if (lane >= distance) scan += before;", "if (lane > distance) scan += before;"),
    ("expert_list.cuh", "first[expert] + eight - ahead;", "first[expert] + eight;"),
    ("expert_list.cuh", "__syncthreads();   // the sums whose place the masks take are read", ""),
    ("expert_list.cuh", "__popc(low) + __popc(high & below)", "__popc(high & below)"),
    ("expert_list.cuh", "min(count(ids[0]), 8) << 12", "min(count(ids[0]), 7) << 12"),
    ("expert_feed.cuh", "mbar_wait(bars + position % 2 * 8, position / 2 % 2);", "mbar_wait(bars + position % 2 * 8, 0);"),
    ("expert_feed.cuh", "(bite ? P::kSecondBite : P::kFirstBite) * Int4Panel", "P::kFirstBite * Int4Panel"),
    ("expert_feed.cuh", "shared_next += gridDim.x * P::kWarps;", "shared_next += gridDim.x * P::kWarps + 1;"),
    ("expert_feed.cuh", "shared_next = workers - 1 - ticket;", "shared_next = workers - ticket;"),
    ("expert_feed.cuh", "left = max(0, min(batch, all - next));", "left = max(0, min(batch, all - next - 1));"),
    ("expert_decode.cuh", "for (int w = 1; w < P::kWarps; ++w) total", "for (int w = 2; w < P::kWarps; ++w) total"),
    ("expert_decode.cuh", "x / (1.f + __expf(-x))", "x / (1.f + __expf(x))"),
    ("expert_decode.cuh", "a.sync->units = a.sync->items = a.sync->blocks = 0;", "a.sync->units = a.sync->items = 0;"),
    ("expert_decode.cuh", "        store16_relaxed(from + i * stride, empty_word());\n", ""),
    ("expert_decode.cuh", "if (arrived[0] + 1 == u32(blocks)) restore();", ""),
    ("expert_decode.cuh", "if constexpr (P::kShared) y = y + shared;", ""),
    ("expert_decode.cuh", "while (!complete(b)) b = load(n);", ""),
    ("expert_decode.cuh", "        do tile.b = load_words<2 * P::kDownPanels>(act);\n        while (!complete(tile.b));",
     "        tile.b = load_words<2 * P::kDownPanels>(act);"),
    ("expert_decode.cuh", "if (2 * t < count) store8_relaxed", "if (2 * t + 1 < count) store8_relaxed"),
    ("expert_decode.cuh", "after = queue[(round - 1) % 4]", "after = queue[round % 4]"),
    ("expert_decode.cuh", "const float gate = a.gates[row * P::kTopK + slot];", "const float gate = a.gates[row * P::kTopK];"),
    ("expert_decode.cuh", "+ round % 2 * (P::kWarps * 32) + lane", "+ round % 1 * (P::kWarps * 32) + lane"),
    # the parts of K are added in another order where there is more than one row
    ("expert_decode.cuh", "total = total + parts[part];", "total = total + parts[rows > 1 ? P::kSharedParts - part : part];"),
]  # fmt: skip
