"""Sum over the ranks, residual addition and the norm of its sum, in one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.ops.add import Add
from ddtree.graph.ops.add_rms_norm import AddRmsNorm
from ddtree.graph.ops.all_reduce import AllReduce
from ddtree.graph.ops.rms_norm import RmsNorm
from ddtree.graph.tensor import Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class AllReduceAddRmsNorm(Op):
    """sum = a + all_reduce(x), y = rms_norm(sum) * weight, bit for bit what AllReduce, Add and RmsNorm make one after another.

    x       [rows, width] bf16, a rank's share; ranks: size of the group
    a       [rows, width] bf16, the same on all ranks
    weight  [width] bf16
    sum     [rows, width] bf16       y  as sum
    eps     added to the mean square; positive

    The total over the ranks and the sum are rounded, as between the three ops.
    """

    x: Tensor
    a: Tensor
    weight: Weight
    sum: Tensor
    y: Tensor
    ranks: int
    eps: float
    template = "all_reduce_add_rms_norm"
    outputs = ("sum", "y")
    collective = True

    @classmethod
    def infer(cls, *, a: Tensor, **_: Any) -> dict[str, Tensor]:
        """Both have the shape of a."""
        return AddRmsNorm.infer(a=a)

    def parts(self) -> tuple[AllReduce, Add, RmsNorm]:
        """The ops that it stands for."""
        total = replace(self.x, name=f"{self.x.name}.total")
        reduction = AllReduce(x=self.x, y=total, ranks=self.ranks, origin=self.origin)
        add = Add(a=self.a, b=total, y=self.sum, origin=self.origin)
        return reduction, add, RmsNorm(x=self.sum, weight=self.weight, y=self.y, eps=self.eps, origin=self.origin)

    def check(self) -> None:
        """What the ops want, and rows of one axis."""
        self.require(len(self.x.shape) == 2, f"rows of one axis are wanted, found {self.x.shape[1:]}")
        for part in self.parts():
            part.check()

    def reference(
        self, run: Run, *, x: list[np.ndarray], a: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """One op after another; x holds every rank's part, in rank order."""
        reduction, add, norm = self.parts()
        total = add.reference(run, a=a, b=reduction.reference(run, x=x))
        return total, norm.reference(run, x=total, weight=weight)

    def cost(self, load: Load) -> Cost:
        """The three ops, but neither the total nor the sum is read back, and the total is not written."""
        reduction, add, norm = self.parts()
        whole, row = reduction.cost(load) + add.cost(load) + norm.cost(load), row_traffic(load, self.sum)
        return replace(whole, read=whole.read - 2 * row, write=whole.write - row)
