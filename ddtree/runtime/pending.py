"""Features of committed rows that the drafter has not taken into its context yet, because their rounds did not draft."""

from __future__ import annotations

import numpy as np


class Pending:
    """At most `capacity` rows of each slot, in position order."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._rows: dict[int, list[tuple[int, np.ndarray]]] = {}

    def full(self, slot: int) -> bool:
        """Whether no more rows of a slot may be added."""
        return len(self._rows.get(slot, ())) >= self.capacity

    def add(self, slot: int, position: int, features: np.ndarray) -> None:
        """One committed position and its features [width]."""
        self._rows.setdefault(slot, []).append((position, features.copy()))

    def drop(self, slot: int) -> None:
        """Forget a slot."""
        self._rows.pop(slot, None)

    def take(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Slots [n], positions [n] and features [n, width] of all rows, which are pending no more; None without any."""
        rows, self._rows = [(s, p, f) for s, mine in self._rows.items() for p, f in mine], {}
        if not rows:
            return None
        slots, positions, features = zip(*rows, strict=True)
        return np.array(slots), np.array(positions), np.stack(features)
