"""Faults in copy.cuh that the embedding shows."""

MUTATIONS = [
    ("copy.cuh", "table + size_t(ids[row])", "table + size_t(ids[0])"),
    ("copy.cuh", "at += Config::threads * 16", "at += Config::threads * 32"),
    ("copy.cuh", "at < Config::row_bytes;", "at <= Config::row_bytes;"),
]
