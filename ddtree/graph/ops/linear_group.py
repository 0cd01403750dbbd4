"""Products of the same rows with several weights, in one kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.ops.linear import Linear
from ddtree.graph.tensor import Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class LinearGroup(Op):
    """ys[i][r] = matrices[i] @ x[r], bit for bit what one Linear for each weight makes.

    x         [rows, ...] bf16, `in` elements a row
    matrices  [out_i, in] bf16 each
    ys        [rows, out_i] each, in `dtype`, or any shape of `out_i` elements a row
    dtype     bf16 (rounded once) or fp32
    """

    x: Tensor
    matrices: tuple[Weight, ...]
    ys: tuple[Tensor, ...]
    dtype: Literal["bf16", "fp32"] = "bf16"
    template = "linear_group"
    outputs = ("ys",)

    @classmethod
    def infer(cls, **_: Any) -> dict[str, Tensor]:
        """Outputs are those of the linears that it stands for; a pass makes it of them."""
        return {}

    def layout(self, field: str) -> str:
        """That of a linear: a weight may be in a group in one step and alone in another."""
        return "linear.weight"

    def parts(self) -> tuple[Linear, ...]:
        """The ops that it stands for."""
        return tuple(
            Linear(x=self.x, weight=w, y=y, dtype=self.dtype, origin=self.origin)
            for w, y in zip(self.matrices, self.ys, strict=True)
        )

    def check(self) -> None:
        """What every linear wants."""
        self.require(len(self.ys) > 1, "a group has at least two weights")
        for part in self.parts():
            part.check()

    def is_partial(self) -> bool:
        """True when the input axis is divided."""
        return self.parts()[0].is_partial()

    def reference(self, run: Run, *, x: np.ndarray, matrices: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        """One linear after the other."""
        return tuple(part.reference(run, x=x, weight=w) for part, w in zip(self.parts(), matrices, strict=True))

    def cost(self, load: Load) -> Cost:
        """All linears, but x is read once."""
        total = sum((part.cost(load) for part in self.parts()), Cost())
        return replace(total, read=row_traffic(load, self.x))
