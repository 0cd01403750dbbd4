"""Residual addition and the norm of its sum, in one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.ops.add import Add
from ddtree.graph.ops.rms_norm import RmsNorm
from ddtree.graph.tensor import Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class AddRmsNorm(Op):
    """sum = a + b, y = rms_norm(sum) * weight, bit for bit what Add and RmsNorm make one after the other.

    a, b    [rows, width] bf16
    weight  [width] bf16
    sum     [rows, width] bf16; others may read it too: the next residual, a tap
    y       as sum
    eps     added to the mean square; positive

    The norm starts from the rounded sum, so the rounding points are those of the two ops.
    """

    a: Tensor
    b: Tensor
    weight: Weight
    sum: Tensor
    y: Tensor
    eps: float
    template = "add_rms_norm"
    outputs = ("sum", "y")

    @classmethod
    def infer(cls, *, a: Tensor, **_: Any) -> dict[str, Tensor]:
        """Both have the shape of a."""
        (total,) = Add.infer(a=a).values()
        return {"sum": total, **RmsNorm.infer(x=total)}

    def parts(self) -> tuple[Add, RmsNorm]:
        """The ops that it stands for."""
        add = Add(a=self.a, b=self.b, y=self.sum, origin=self.origin)
        return add, RmsNorm(x=self.sum, weight=self.weight, y=self.y, eps=self.eps, origin=self.origin)

    def check(self) -> None:
        """What both ops want, and rows of one axis."""
        self.require(len(self.a.shape) == 2, f"rows of one axis are wanted, found {self.a.shape[1:]}")
        for part in self.parts():
            part.check()

    def reference(self, run: Run, *, a: np.ndarray, b: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One op after the other."""
        add, norm = self.parts()
        total = add.reference(run, a=a, b=b)
        return total, norm.reference(run, x=total, weight=weight)

    def cost(self, load: Load) -> Cost:
        """Both ops, but the sum is not read back."""
        add, norm = self.parts()
        both = add.cost(load) + norm.cost(load)
        return replace(both, read=both.read - row_traffic(load, self.sum))
