"""Faults in copy.cuh that the choice of rows shows."""

MUTATIONS = [
    ("copy.cuh", "size_t(rows->wanted[row])", "row"),
    ("copy.cuh", "row >= rows->wanted_count", "row >= rows->count"),
    (
        "copy.cuh",
        "y + row * Config::row_bytes, x + size_t(rows->wanted[row])",
        "y + rows->wanted[row] * Config::row_bytes, x + row",
    ),
]
