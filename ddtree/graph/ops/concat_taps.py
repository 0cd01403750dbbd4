"""Features of the target that feed the drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class ConcatTaps(Op):
    """Concatenate the residual stream after each tapped layer: y[r] = [taps[0][r] | taps[1][r] | ...].

    taps  tensors [rows, hidden] bf16, raw layer outputs (no norm), in the drafter's order
    y     [rows, len(taps) * hidden] bf16
    """

    taps: tuple[Tensor, ...]
    y: Tensor
    template = "concat_taps"

    @classmethod
    def infer(cls, *, taps: tuple[Tensor, ...], **_: Any) -> dict[str, Tensor]:
        """All taps side by side."""
        return {"y": Tensor("", (taps[0].shape[0], sum(t.width for t in taps)))}

    def check(self) -> None:
        """Taps are whole on every rank."""
        self.require(all(t.split is None for t in self.taps), "a tap must be whole on every rank")

    def reference(self, run: Run, *, taps: list[np.ndarray]) -> np.ndarray:
        """Exact: a copy."""
        return np.concatenate(taps, axis=1)

    def cost(self, load: Load) -> Cost:
        """One pass."""
        return Cost(read=row_traffic(load, *self.taps), write=row_traffic(load, self.y))
