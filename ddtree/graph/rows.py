"""The row table: which sequence, position and parent each row of a step has."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MAX_ROWS = 64  # rows of one round; also rows of a sequence's tree scratch


@dataclass
class RowTable:
    """The rows of one step.

    sequence   [rows] int32, slot of the sequence a row belongs to
    position   [rows] int32, absolute position of the row's token
    parent     [rows] int32, row of the tree parent, -1 for a root or a row that is no tree node
    node       [rows] int32, slot of the row in its sequence's tree scratch
    committed  [sequences] int32, committed positions of each sequence slot
    pages      [sequences, pages] int32, page table of each sequence slot; -1 where no page is mapped
    tree       True: rows are tree nodes and write to scratch. False: rows are committed positions and write to pages
    wanted     rows whose logits are wanted (None: all)
    source     [rows] int32, row of the step before from which a row's features come (None where there is none)
    """

    sequence: np.ndarray
    position: np.ndarray
    parent: np.ndarray
    node: np.ndarray
    committed: np.ndarray
    pages: np.ndarray
    tree: bool
    wanted: np.ndarray | None = None
    source: np.ndarray | None = None
    _paths: dict[int, list[int]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.sequence)

    def path(self, row: int) -> list[int]:
        """Rows from the root of the tree down to `row`, both included."""
        if row not in self._paths:
            parent = int(self.parent[row])
            self._paths[row] = [*(self.path(parent) if parent >= 0 else []), row]
        return self._paths[row]

    def of(self, sequence: int) -> np.ndarray:
        """The rows of one sequence, in order."""
        return np.flatnonzero(self.sequence == sequence)
