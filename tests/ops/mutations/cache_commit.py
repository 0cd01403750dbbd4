"""Faults in cache.cuh that the commit shows."""

MUTATIONS = [
    ("cache.cuh", "entry >= length[sequence]", "entry > length[sequence]"),
    ("cache.cuh", "path[sequence * Config::depth + entry]", "path[entry]"),
    ("cache.cuh", "rows->committed[sequence] + entry", "rows->committed[sequence] + entry + 1"),
    ("cache.cuh", "++i == n ? others : first", "++i == 1 ? others : first"),
    (
        "cache.cuh",
        "page_slot<Config::ring>(rows, sequence, rows->committed",
        "page_slot<64>(rows, sequence, rows->committed",
    ),
]
