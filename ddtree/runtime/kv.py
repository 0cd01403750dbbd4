"""Key-value state: a pool of pages shared by all sequences, and the NumPy arrays of one layer's cache."""

from __future__ import annotations

import numpy as np

from ddtree.errors import UsageError
from ddtree.graph.rows import MAX_ROWS, RowTable
from ddtree.graph.tensor import Cache

PAGE = 64  # positions


class PagePool:
    """Page numbers 0..pages-1 and who holds them. One page number means the same page in every layer's cache."""

    def __init__(self, pages: int, sequences: int, context: int) -> None:
        self.total, self.context = pages, context
        self.free = list(range(pages - 1, -1, -1))
        self.table = np.full((sequences, -(-context // PAGE)), -1, np.int32)

    def reserve(self, sequence: int, positions: int) -> None:
        """Map pages so that `sequence` can hold `positions` positions. Raises UsageError when none is left."""
        if positions > self.context:
            raise UsageError(f"a sequence of {positions} positions exceeds the context of {self.context}")
        for slot in range(-(-positions // PAGE)):
            if self.table[sequence, slot] < 0:
                if not self.free:
                    raise UsageError(
                        f"all {self.total} KV pages of {PAGE} positions are in use; serve fewer or shorter sequences"
                    )
                self.table[sequence, slot] = self.free.pop()

    def trim(self, sequence: int, positions: int) -> None:
        """Give back pages of `sequence` that hold none of its first `positions` positions: nothing was written there."""
        spare = self.table[sequence, -(-positions // PAGE) :]
        self.free.extend(int(p) for p in spare[::-1] if p >= 0)
        spare[:] = -1

    def held(self, sequence: int) -> int:
        """Positions for which `sequence` has pages."""
        return PAGE * int((self.table[sequence] >= 0).sum())

    def release(self, sequence: int) -> list[int]:
        """Give all pages of `sequence` back; returns their numbers."""
        held = [int(p) for p in self.table[sequence] if p >= 0]
        self.free.extend(reversed(held))
        self.table[sequence] = -1
        return held


class NumpyCache:
    """One layer's cache: committed rows in pages (or a ring, when windowed) and tree rows in scratch.

    Memory that holds no row is NaN, so that a reader which strays is seen.
    """

    def __init__(self, cache: Cache, pages: int, sequences: int) -> None:
        self.cache = cache
        self.ring = cache.pages() * PAGE if cache.window is not None else 0
        shape = (sequences, self.ring) if self.ring else (pages, PAGE)
        self.rows = np.full((*shape, *cache.row), np.nan, np.float32)
        self.scratch = np.full((sequences, MAX_ROWS, *cache.row), np.nan, np.float32)

    def _place(self, rows: RowTable, sequence: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The two leading indexes of committed positions."""
        if self.ring:
            return np.full(len(positions), sequence), positions % self.ring
        return rows.pages[sequence, positions // PAGE], positions % PAGE

    def write(self, rows: RowTable, values: np.ndarray) -> None:
        """Store one row of values per row of the table: in scratch for tree rows, in pages otherwise."""
        if rows.tree:
            self.scratch[rows.sequence, rows.node] = values
            return
        for sequence in np.unique(rows.sequence):
            mine = rows.of(int(sequence))
            if self.ring:
                mine = mine[-self.ring :]  # older rows would be overwritten at once
            self.rows[self._place(rows, int(sequence), rows.position[mine])] = values[mine]

    def committed(self, rows: RowTable, sequence: int, first: int) -> np.ndarray:
        """Rows of committed positions `first`.. of a sequence, in position order."""
        positions = np.arange(first, int(rows.committed[sequence]))
        return self.rows[self._place(rows, sequence, positions)]

    def gather(self, rows: RowTable, row: int) -> np.ndarray:
        """The rows that `row` sees, in position order, itself last."""
        sequence = int(rows.sequence[row])
        if rows.tree:
            path = rows.node[rows.path(row)]
            return np.concatenate([self.committed(rows, sequence, 0), self.scratch[sequence, path]])
        return self.rows[self._place(rows, sequence, np.arange(int(rows.position[row]) + 1))]

    def commit(self, rows: RowTable, sequence: int, path: np.ndarray) -> None:
        """Copy scratch slots `path` to the positions that follow the committed ones, in order."""
        first = int(rows.committed[sequence])
        self.rows[self._place(rows, sequence, np.arange(first, first + len(path)))] = self.scratch[sequence, path]

    def poison(self, sequence: int, pages: list[int]) -> None:
        """Forget a sequence: its freed pages, its ring and its scratch become NaN."""
        self.rows[sequence if self.ring else pages] = np.nan
        self.scratch[sequence] = np.nan
