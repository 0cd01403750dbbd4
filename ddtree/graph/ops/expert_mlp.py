"""Routed experts and the shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.numerics import Numerics, silu
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import DType, Tensor, Weight


def expected_experts(experts: int, top_k: int, rows: int) -> float:
    """Distinct experts that `rows` rows touch when each picks top_k of them independently and uniformly."""
    return experts * (1 - (1 - top_k / experts) ** rows)


def gated_mlp(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray, num: Numerics) -> np.ndarray:
    """down @ (silu(gate @ x) * (up @ x)) of one row; the activation is rounded, the result is not."""
    return np.dot(down, num.store(silu(np.dot(gate, x)) * np.dot(up, x)))


@dataclass(frozen=True, kw_only=True)
class ExpertMlp(Op):
    """Mixture of experts: y = sum_j gates[j] * expert[ids[j]](x) + shared(x), each a gated MLP.

    x                 [rows, hidden] bf16
    ids, gates        [rows, top_k] (Route)
    gate, up, down    [experts, width, hidden], the same, [experts, hidden, width]; INT4, dequantised as bf16(q * scale)
    shared_gate, shared_up, shared_down   the same without the first axis, bf16; all three or none
    y                 [rows, hidden] bf16

    Activations are rounded to bf16; slots are summed in slot order in fp32, then the shared expert; one rounding. An
    expert width divided among ranks gives each rank a partial sum.
    """

    x: Tensor
    ids: Tensor
    gates: Tensor
    gate: Weight
    up: Weight
    down: Weight
    shared_gate: Weight | None = None
    shared_up: Weight | None = None
    shared_down: Weight | None = None
    y: Tensor
    template = "expert_mlp"

    @classmethod
    def infer(cls, *, x: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of x."""
        return {"y": Tensor("", x.shape)}

    def check(self) -> None:
        """Shapes of the three matrices agree; a rank holds whole quantisation groups."""
        experts, width, hidden = self.gate.shape
        self.require(self.up.shape == self.gate.shape, f"gate {self.gate.shape} and up {self.up.shape} differ")
        self.require(
            self.down.shape == (experts, hidden, width), f"down {self.down.shape} must be {(experts, hidden, width)}"
        )
        self.require(hidden == self.x.width, f"experts take rows of {hidden}, x has {self.x.width}")
        self.require(
            self.down.dtype is not DType.INT4 or width % self.down.group == 0,
            f"a rank's expert width {width} is not a multiple of the quantisation group {self.down.group}; use fewer ranks",
        )
        shared = (self.shared_gate, self.shared_up, self.shared_down)
        self.require(all(shared) or not any(shared), "a shared expert needs shared_gate, shared_up and shared_down")
        if self.shared_gate and self.shared_down:
            self.require(
                self.shared_down.shape == self.shared_gate.shape[::-1],
                "shared_gate and shared_down do not fit together",
            )

    def is_partial(self) -> bool:
        """True when the width is divided."""
        return self.down.split == 1

    def reference(self, run: Run, *, x: np.ndarray, ids: np.ndarray, gates: np.ndarray, **w: np.ndarray) -> np.ndarray:
        """Row by row, slot by slot."""
        y = np.zeros((len(x), self.y.width), np.float32)
        for r in range(len(x)):
            for e, g in zip(ids[r], gates[r], strict=True):
                y[r] += g * gated_mlp(x[r], w["gate"][e], w["up"][e], w["down"][e], run.num)
            if self.shared_gate:
                y[r] += gated_mlp(x[r], w["shared_gate"], w["shared_up"], w["shared_down"], run.num)
        return run.num.store(y)

    def cost(self, load: Load) -> Cost:
        """Each touched expert once (independent uniform routing), and the shared expert once."""
        experts, top_k = self.gate.shape[0], self.ids.shape[1]
        routed = sum(w.nbytes for w in (self.gate, self.up, self.down)) / experts
        shared = sum(w.nbytes for w in (self.shared_gate, self.shared_up, self.shared_down) if w)
        per_row = top_k * 6 * prod(self.gate.shape[1:]) + (6 * prod(self.shared_gate.shape) if self.shared_gate else 0)
        return Cost(
            weights=round(routed * expected_experts(experts, top_k, load.rows)) + shared,
            read=row_traffic(load, self.x, self.ids, self.gates),
            write=row_traffic(load, self.y),
            flops=load.rows * per_row,
        )
