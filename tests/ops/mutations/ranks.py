"""Faults in the messages between ranks."""

MUTATIONS = [
    ("ranks.cuh", "size_t((group.turn + 2) % 3)", "size_t((group.turn + 1) % 3)"),
    ("ranks.cuh", "group.turn = (group.turn + 1) % 3;", "group.turn = (group.turn + 1) % 2;"),
    ("ranks.cuh", "group.extent = u32(extent);", "group.extent = u32(extent) / 2;"),
    ("ranks.cuh", "        group.arrivals = 0;\n", ""),
    (
        "ranks.cuh",
        "if (is_empty(words[i])) missing = from(i);",
        "if (i > 0 && is_empty(words[i])) missing = from(i);",
    ),
]
