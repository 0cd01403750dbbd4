"""Row capacities for which the verify step is generated: a round takes the smallest that holds its rows."""

from __future__ import annotations

from ddtree.graph.build import Limits
from ddtree.graph.rows import MAX_ROWS

BUCKETS = (1, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def bucket(rows: int) -> int:
    """The smallest row capacity that holds `rows`."""
    return next(b for b in BUCKETS if rows <= b)


def needed_buckets(limits: Limits) -> list[int]:
    """The row capacities that rounds of 1..sequences sequences need: all, where each round chooses its size."""
    if limits.auto:
        return list(BUCKETS)
    counts = range(1, limits.sequences + 1)
    return sorted({bucket(n * (min(limits.nodes - 1, MAX_ROWS // n - 1) + 1)) for n in counts})
