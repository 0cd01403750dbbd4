"""Rotary position embedding of the whole last axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.rope import Rope
from ddtree.graph.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class Rotate(Op):
    """Rotate every head by its row's position (graph/rope.py).

    x     [rows, heads, dim] bf16
    y     as x, rounded once
    rope  the rotation rule; its dim is the head's
    """

    x: Tensor
    y: Tensor
    rope: Rope
    template = "rotate"

    @classmethod
    def infer(cls, *, x: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of x."""
        return {"y": Tensor("", x.shape, split=x.split)}

    def check(self) -> None:
        """The rule rotates the whole head."""
        self.require(
            self.rope.dim == self.x.shape[-1],
            f"rope {self.rope.name} rotates {self.rope.dim} elements, a head has {self.x.shape[-1]}",
        )

    def reference(self, run: Run, *, x: np.ndarray) -> np.ndarray:
        """Angles, cos and sin in fp32; the result is rounded once."""
        return run.num.store(self.rope.rotate(x, run.rows.position))

    def cost(self, load: Load) -> Cost:
        """One pass."""
        return Cost(read=row_traffic(load, self.x), write=row_traffic(load, self.y), flops=3 * load.rows * self.x.width)
