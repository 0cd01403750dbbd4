"""Sum of the ranks' partial results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class AllReduce(Op):
    """y = sum over ranks of x, in rank order in fp32, rounded once; every rank gets the same bits.

    x, y   [rows, width] bf16
    ranks  size of the group
    """

    x: Tensor
    y: Tensor
    ranks: int
    template = "all_reduce"
    collective = True

    @classmethod
    def infer(cls, *, x: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of x."""
        return {"y": Tensor("", x.shape, x.dtype)}

    def reference(self, run: Run, *, x: list[np.ndarray]) -> np.ndarray:
        """x holds every rank's part, in rank order."""
        total = x[0].copy()
        for part in x[1:]:
            total += part
        return run.num.store(total)

    def cost(self, load: Load) -> Cost:
        """What one rank reads of the others and writes."""
        return Cost(read=self.ranks * row_traffic(load, self.x), write=row_traffic(load, self.y))
