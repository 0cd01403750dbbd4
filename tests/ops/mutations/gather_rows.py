"""Faults in copy.cuh that the gathering of accepted rows shows."""

MUTATIONS = [
    ("copy.cuh", "size_t(rows->source[row])", "row"),
    ("copy.cuh", "if (row >= rows->count) return;", ""),
    ("copy.cuh", "size_t(rows->source[row])", "size_t(rows->source[0] + row)"),
]
