"""The ranks' parts side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class AllGather(Op):
    """y = [x of rank 0 | x of rank 1 | ...]

    x      [rows, part], one rank's columns
    y      [rows, ranks * part]
    ranks  size of the group
    """

    x: Tensor
    y: Tensor
    ranks: int
    template = "all_gather"
    collective = True

    @classmethod
    def infer(cls, *, x: Tensor, ranks: int, **_: Any) -> dict[str, Tensor]:
        """All ranks' columns; x is one rank's part already."""
        return {"y": Tensor("", (x.shape[0], x.shape[1] * ranks), x.dtype)}

    def reference(self, run: Run, *, x: list[np.ndarray]) -> np.ndarray:
        """x holds every rank's part, in rank order."""
        return np.concatenate(x, axis=1)

    def cost(self, load: Load) -> Cost:
        """What one rank reads of the others and writes."""
        return Cost(read=self.ranks * row_traffic(load, self.x), write=row_traffic(load, self.y))
