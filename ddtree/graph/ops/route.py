"""Choice of experts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.numerics import linear_rows, sigmoid
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import DType, Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class Route(Op):
    """Choose `top_k` experts per row by sigmoid score plus a selection bias, and weigh them by the score alone.

        s = sigmoid(weight @ x);   chosen = top_k of s + bias;   gates = scale * s[chosen] / (sum(s[chosen]) + 1e-20)

    x       [rows, hidden] bf16
    weight  [experts, hidden] bf16
    bias    [experts] fp32: it selects, and is no part of the gates
    ids     [rows, top_k] int32, distinct, by falling s + bias; equal values take the lower id first
    gates   [rows, top_k] fp32

    Everything in fp32, since rounding could change the choice. Source: DeepSeek-V3 (2024), section 2.1.2.
    """

    x: Tensor
    weight: Weight
    bias: Weight
    ids: Tensor
    gates: Tensor
    top_k: int
    scale: float
    template = "route"
    outputs = ("ids", "gates")

    @classmethod
    def infer(cls, *, x: Tensor, top_k: int, **_: Any) -> dict[str, Tensor]:
        """top_k entries a row."""
        shape = (x.shape[0], top_k)
        return {"ids": Tensor("", shape, DType.INT32), "gates": Tensor("", shape, DType.FP32)}

    def check(self) -> None:
        """One score and bias per expert."""
        experts, hidden = self.weight.shape
        self.require(hidden == self.x.width, f"weight [{experts}, {hidden}] does not fit rows of {self.x.width}")
        self.require(
            self.bias.shape == (experts,), f"bias {self.bias.shape} must have one value for each of {experts} experts"
        )
        self.require(1 <= self.top_k <= experts, f"top_k must be 1..{experts}, found {self.top_k}")

    def reference(
        self, run: Run, *, x: np.ndarray, weight: np.ndarray, bias: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Stable sort, so that ties take the lower id. NaN scores rank last, and ids stay distinct."""
        score = sigmoid(linear_rows(x, weight))
        rank = np.where(np.isnan(score), -np.inf, score + bias)
        ids = np.argsort(-rank, axis=1, kind="stable")[:, : self.top_k].astype(np.int32)
        chosen = np.take_along_axis(score, ids, axis=1)
        total = np.zeros((len(x), 1), np.float32)
        for slot in range(self.top_k):
            total += chosen[:, slot : slot + 1]
        return ids, chosen / (total + np.float32(1e-20)) * np.float32(self.scale)

    def cost(self, load: Load) -> Cost:
        """The router's weight once."""
        flops = 2 * load.rows * prod(self.weight.shape)
        return Cost(
            self.weight.nbytes + self.bias.nbytes,
            row_traffic(load, self.x),
            row_traffic(load, self.ids, self.gates),
            flops,
        )
