"""Rows of an earlier step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class GatherRows(Op):
    """y[r] = x[source[r]]: the features of the accepted rows, in position order.

    x  [source rows, ...] bf16, written by an earlier step
    y  [rows, ...] bf16
    """

    x: Tensor
    y: Tensor
    rows: int
    template = "gather_rows"

    @classmethod
    def infer(cls, *, x: Tensor, rows: int, **_: Any) -> dict[str, Tensor]:
        """x's row shape for `rows` rows."""
        return {"y": Tensor("", (rows, *x.shape[1:]), x.dtype, x.split, "rows")}

    def reference(self, run: Run, *, x: np.ndarray) -> np.ndarray:
        """Exact: a copy."""
        return x[run.rows.source]

    def cost(self, load: Load) -> Cost:
        """One pass."""
        return Cost(read=row_traffic(load, self.y), write=row_traffic(load, self.y))
