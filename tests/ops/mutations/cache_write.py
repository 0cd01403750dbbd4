"""Faults in cache.cuh that the writes show."""

MUTATIONS = [
    ("cache.cuh", "rows->sequence[row], rows->node[row]", "rows->sequence[row], int(row)"),
    ("cache.cuh", "size_t(sequence) * kScratch", "size_t(sequence) * kPage / 2"),
    ("cache.cuh", "size_t(sequence) * rows->pages_per_sequence", "size_t(sequence)"),
    ("cache.cuh", "position / kPage]", "(position + 1) / kPage]"),
    ("cache.cuh", "RING + position % RING", "RING + (position + 1) % RING"),
    ("cache.cuh", "== rows->sequence[row];", "!= rows->sequence[row];"),
    ("cache.cuh", "row + RING < rows->count", "row + RING + 1 < rows->count"),
]
