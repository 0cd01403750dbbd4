"""Residual addition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class Add(Op):
    """y = a + b

    a, b, y  [rows, width] bf16; the sum is rounded once
    """

    a: Tensor
    b: Tensor
    y: Tensor
    template = "add"

    @classmethod
    def infer(cls, *, a: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of a."""
        return {"y": Tensor("", a.shape, split=a.split)}

    def check(self) -> None:
        """Both terms are alike."""
        self.require(self.a.shape == self.b.shape, f"the terms {self.a.shape} and {self.b.shape} differ in shape")
        self.require(self.a.split == self.b.split, "the terms are divided differently among ranks")

    def reference(self, run: Run, *, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """See the formula above."""
        return run.num.store(a + b)

    def cost(self, load: Load) -> Cost:
        """One pass."""
        return Cost(
            read=row_traffic(load, self.a, self.b), write=row_traffic(load, self.y), flops=load.rows * self.y.width
        )
