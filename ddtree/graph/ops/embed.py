"""Token embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import DType, Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class Embed(Op):
    """Look up the embedding of each row's token: y[r] = weight[ids[r]].

    ids     [rows] int32, each in 0..vocab-1
    weight  [vocab, hidden] bf16
    y       [rows, hidden] bf16
    """

    ids: Tensor
    weight: Weight
    y: Tensor
    template = "embed"

    @classmethod
    def infer(cls, *, ids: Tensor, weight: Weight, **_: Any) -> dict[str, Tensor]:
        """One row of `hidden` elements per id."""
        return {"y": Tensor("", (ids.shape[0], weight.full[1]))}

    def check(self) -> None:
        """Ids are one int32 per row."""
        self.require(
            self.ids.dtype is DType.INT32 and len(self.ids.shape) == 1,
            f"ids must be [rows] int32, found {self.ids.shape}",
        )
        self.require(self.weight.split is None, "an embedding table must be replicated on every rank (replicate: true)")

    def reference(self, run: Run, *, ids: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Exact: a copy."""
        return np.asarray(weight[ids], np.float32)

    def cost(self, load: Load) -> Cost:
        """One table row read and written per row."""
        return Cost(weights=load.rows * self.y.width * 2, read=4 * load.rows, write=row_traffic(load, self.y))
