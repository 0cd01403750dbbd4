"""Matrix product with a weight."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.numerics import linear_rows
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import DType, Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class Linear(Op):
    """y[r] = weight @ x[r], accumulated in fp32.

    x       [rows, ...] bf16, `in` elements a row
    weight  [out, in] bf16
    y       [rows, out] in `dtype`, or any shape of `out` elements a row
    dtype   bf16 (rounded once) or fp32

    A weight divided along its input axis gives each rank a partial sum.
    """

    x: Tensor
    weight: Weight
    y: Tensor
    dtype: Literal["bf16", "fp32"] = "bf16"
    template = "linear"

    @classmethod
    def infer(cls, *, x: Tensor, weight: Weight, dtype: str | None = None, **_: Any) -> dict[str, Tensor]:
        """One row of `out` elements."""
        return {
            "y": Tensor(
                "", (x.shape[0], weight.full[0]), DType(dtype or "bf16"), split=1 if weight.split == 0 else None
            )
        }

    def check(self) -> None:
        """The row of x is as long as the weight's input axis, the row of y as its output axis."""
        out, width = self.weight.shape
        self.require(width == self.x.width, f"weight [{out}, {width}] does not fit rows of {self.x.width} elements")
        self.require(
            out == self.y.width, f"y has rows of {self.y.shape[1:]} = {self.y.width} elements, the weight gives {out}"
        )
        self.require(
            (self.weight.split == 1) == (self.x.split is not None),
            "x and the weight's input axis must be divided alike",
        )
        self.require(self.y.dtype == DType(self.dtype), f"y must be {self.dtype}")

    def is_partial(self) -> bool:
        """True when the input axis is divided."""
        return self.weight.split == 1

    def reference(self, run: Run, *, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """One product per row, so that rows stay independent."""
        y = linear_rows(np.ascontiguousarray(x.reshape(len(x), self.x.width)), weight)
        y = y.reshape(len(x), *self.y.shape[1:])
        return run.num.store(y) if self.dtype == "bf16" else y

    def cost(self, load: Load) -> Cost:
        """The weight once for all rows."""
        return Cost(
            weights=self.weight.nbytes,
            read=row_traffic(load, self.x),
            write=row_traffic(load, self.y),
            flops=2 * load.rows * prod(self.weight.shape),
        )
