"""Accepted lengths from a file instead of from the target: for timing models whose weights make no text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddtree.errors import UsageError
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.graph.rows import RowTable


@dataclass(frozen=True)
class AcceptTrace:
    """What the rounds of a sequence accept: round t the length t % len(lengths), the bonus token counted.

    A round accepts the tree's first node of that depth and what is above it, less one for the bonus; where the tree is not so
    deep, its first node of the greatest depth that it has. Its tokens are those of the nodes, then the target's choice after
    the last. Stop ids end nothing.
    """

    name: str
    lengths: tuple[int, ...]

    @staticmethod
    def read(path: Path) -> AcceptTrace:
        """A JSON list of lengths, such as `accept_lengths` of `ddtree-run --json`. Raises UsageError."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as e:
            raise UsageError(f"cannot read {path}: {e.strerror}") from None
        except ValueError as e:
            raise UsageError(
                f"{path} is not JSON ({e}); expected a list of accepted lengths such as [4, 1, 3]"
            ) from None
        if not isinstance(found, list) or not found or not all(type(n) is int and 1 <= n < 2**31 for n in found):
            raise UsageError(
                f"{path}: expected a list of accepted lengths, whole numbers of at least 1, such as [4, 1, 3]"
            )
        return AcceptTrace(str(path), tuple(found))

    @property
    def label(self) -> str:
        """What every output says."""
        return f"FORCED: accepted lengths come from {self.name}, not from the model; its text means nothing"

    @property
    def table(self) -> np.ndarray:
        """As the kernel reads it: the number of lengths, then the lengths; int32."""
        return np.array([len(self.lengths), *self.lengths], np.int32)

    def path(self, tree: DraftTree, turn: int) -> list[int]:
        """The nodes that the sequence's round `turn` accepts, the root first."""
        depth = np.where(tree.depth < self.lengths[turn % len(self.lengths)], tree.depth, -1)
        node, path = int(np.argmax(depth)), list[int]()
        while node >= 0:
            path.append(node)
            node = int(tree.parent[node])
        return path[::-1]

    def force(
        self, out: dict[str, np.ndarray], trees: Mapping[int, DraftTree], rows: RowTable, turns: Mapping[int, int]
    ) -> dict[str, np.ndarray]:
        """The outputs of a verify step as if the lengths had been accepted; trees and rounds so far by slot."""
        path, length, emitted = np.full_like(out["path"], -1), out["length"].copy(), np.full_like(out["emitted"], -1)
        for s, tree in trees.items():
            mine = self.path(tree, turns[s])
            length[s] = n = len(mine)
            path[s, :n] = mine
            emitted[s, :n] = [*tree.token[mine[1:]], out["chosen"][rows.of(s)[mine[-1]]]]
        return {**out, "path": path, "length": length, "emitted": emitted}
