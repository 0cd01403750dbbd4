"""Faults in where a round ends."""

MUTATIONS = [
    ("stop.cuh", "min(length[sequence], remaining[sequence])", "length[sequence]"),
    ("stop.cuh", "end < limit && tokens[end] != -1 && !", "end < limit && !"),
    ("stop.cuh", "kept[sequence] = stopped ? end + 1 : end;", "kept[sequence] = end;"),
    (
        "stop.cuh",
        "length[sequence] > 0 && limit == remaining[sequence] ? 2 : 0",
        "limit == remaining[sequence] ? 2 : 1",
    ),
]
