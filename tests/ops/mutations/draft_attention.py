"""Faults in draft_attention.cuh."""

ATTENTION = "draft_attention.cuh"

MUTATIONS = [
    (ATTENTION, "max(0, committed - Config::window + 1)", "max(0, committed - Config::window + 2)"),
    (ATTENTION, "max(distance, -distance) < Config::window", "max(distance, -distance) <= Config::window"),
    (ATTENTION, "!Config::causal || distance >= 0", "!Config::causal || distance > 0"),
    (ATTENTION, "at % max(1, Config::ring)", "at % (Config::ring + 1)"),
    (ATTENTION, "at >= cut.first && at < from.committed", "at >= cut.first && at <= from.committed"),
    (ATTENTION, "cp_async16(to_value + vector * 16, value + vector * 8, position >= 0);",
     "cp_async16(to_value + vector * 16, value + vector * 8);"),
    (ATTENTION, "visible[n][odd] = at >= 0 &&", "visible[n][odd] ="),
    (ATTENTION, "total[below] *= factor;", ""),
    (ATTENTION, "sum[n][2 * below + 1] *= factor;", ""),
    (ATTENTION, "total[below] += __shfl_xor_sync(0xffffffffu, total[below], 2);", ""),
    (ATTENTION, "if (position[below] < 0) continue;", ""),
    (ATTENTION, "const int end = part < cut.parts - 1 ?", "const int end = part < cut.parts ?"),
    (ATTENTION, "first_tile() const { return first / kDraftKeys; }", "first_tile() const { return first / kDraftKeys + 1; }"),
    (ATTENTION, "ahead = find_draft_tile(from, rows, cut, tile + Config::stages);", ""),
    (ATTENTION, "__syncthreads();   // this tile is there, the buffer of the one before is free", ""),
    # fast warps fetch the next item's keys over those that slow warps still read
    (ATTENTION, "__syncthreads();   // nobody reads the tiles of the item before", ""),
]  # fmt: skip
