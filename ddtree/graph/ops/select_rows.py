"""Keep the rows whose logits are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run
from ddtree.graph.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class SelectRows(Op):
    """y = x[wanted]: the last prompt row of each sequence, or the drafted slots of each block.

    x  [rows, ...] bf16
    y  [wanted rows, ...] bf16

    In a verify step every row is wanted, so the builder leaves the op out.
    """

    x: Tensor
    y: Tensor
    template = "select_rows"

    @classmethod
    def infer(cls, *, x: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of x."""
        return {"y": Tensor("", x.shape, x.dtype, x.split, "wanted")}

    def reference(self, run: Run, *, x: np.ndarray) -> np.ndarray:
        """Exact: a copy."""
        return x if run.rows.wanted is None else x[run.rows.wanted]

    def cost(self, load: Load) -> Cost:
        """One row per sequence."""
        return Cost(read=self.x.row_bytes(load.sequences), write=self.y.row_bytes(load.sequences))
