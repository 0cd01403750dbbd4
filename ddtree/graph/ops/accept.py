"""The walk from the root along the target's own choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run
from ddtree.graph.tensor import DType, Tensor


@dataclass(frozen=True, kw_only=True)
class Accept(Op):
    """Follow the tree from its root as long as a child holds the token that the target chose after the node.

    ids      [rows] int32, the token of each tree row
    chosen   [rows] int32, the target's token after each row (Sample)
    path     [sequences, depths + 1] int32, scratch slots of the accepted rows from the root, -1 beyond `length`
    length   [sequences] int32, accepted rows, the root included: what the round commits; 0 for an absent sequence
    emitted  [sequences, depths + 1] int32, the round's new tokens: those of path[1:], then the bonus; -1 beyond `length`
    depths   depth of the deepest node possible

    Every emitted token is the target's own choice after its prefix, so decoding with a tree changes no distribution.
    Source: DDTree (arXiv 2604.12989), section 3.
    """

    ids: Tensor
    chosen: Tensor
    path: Tensor
    length: Tensor
    emitted: Tensor
    depths: int
    sequences: int
    template = "accept"
    outputs = ("path", "length", "emitted")

    @classmethod
    def infer(cls, *, depths: int, sequences: int, **_: Any) -> dict[str, Tensor]:
        """Room for the deepest path."""
        wide = Tensor("", (sequences, depths + 1), DType.INT32, domain="sequences")
        return {"path": wide, "length": Tensor("", (sequences,), DType.INT32, domain="sequences"), "emitted": wide}

    def reference(self, run: Run, *, ids: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sequence by sequence; siblings hold distinct tokens, so at most one child matches."""
        path = np.full((self.sequences, self.depths + 1), -1, np.int32)
        emitted, length = path.copy(), np.zeros(self.sequences, np.int32)
        rows = run.rows
        child = {(int(rows.parent[r]), int(ids[r])): r for r in range(len(rows)) if rows.parent[r] >= 0}
        for root in np.flatnonzero(rows.parent < 0):
            s = int(rows.sequence[root])
            r: int | None = int(root)
            while r is not None:
                path[s, length[s]], emitted[s, length[s]] = rows.node[r], chosen[r]
                length[s] += 1
                r = child.get((r, int(chosen[r])))
        return path, length, emitted

    def cost(self, load: Load) -> Cost:
        """A few integers."""
        return Cost(read=12 * load.rows, write=8 * load.sequences * (self.depths + 1))
