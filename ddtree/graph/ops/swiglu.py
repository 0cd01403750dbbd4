"""Gated activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.numerics import silu
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class Swiglu(Op):
    """y = silu(gate) * up        (Shazeer, 2020)

    gate, up, y  [rows, width] bf16; silu and product in fp32, one rounding
    """

    gate: Tensor
    up: Tensor
    y: Tensor
    template = "swiglu"

    @classmethod
    def infer(cls, *, gate: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of gate."""
        return {"y": Tensor("", gate.shape, split=gate.split)}

    def check(self) -> None:
        """gate and up are alike."""
        self.require(self.gate.shape == self.up.shape, f"gate {self.gate.shape} and up {self.up.shape} differ")

    def reference(self, run: Run, *, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        """See the formula above."""
        return run.num.store(silu(gate) * up)

    def cost(self, load: Load) -> Cost:
        """One pass."""
        return Cost(
            read=row_traffic(load, self.gate, self.up),
            write=row_traffic(load, self.y),
            flops=8 * load.rows * self.y.width,
        )
