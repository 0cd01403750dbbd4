"""Queries of multi-head latent attention in absorbed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.rope import Rope
from ddtree.graph.tensor import Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class MlaQuery(Op):
    """Move the key projection to the query's side: y[h] = [q_nope[h] @ W_UK[h] | rope(q_rope[h])].

    q       [rows, heads, nope + rope] bf16
    weight  [heads * (nope + value), latent] bf16, kv_b_proj; W_UK[h] is the first `nope` rows of head h
    y       [rows, heads, latent + rope] bf16
    rope    rotates the last rope.dim elements of each head

    Source: DeepSeek-V2 (2024), appendix C: q . (W_UK c) = (W_UK^T q) . c, so keys are never expanded.
    """

    q: Tensor
    weight: Weight
    y: Tensor
    rope: Rope
    template = "mla_query"

    @classmethod
    def infer(cls, *, q: Tensor, weight: Weight, rope: Rope, **_: Any) -> dict[str, Tensor]:
        """Every head becomes latent + rope wide."""
        return {"y": Tensor("", (*q.shape[:2], weight.full[1] + rope.dim), split=q.split)}

    @property
    def nope(self) -> int:
        """Elements of a head that are not rotated."""
        return self.q.shape[2] - self.rope.dim

    def check(self) -> None:
        """One group of weight rows per head, at least `nope` each."""
        self.require(
            len(self.q.shape) == 3 and self.nope > 0,
            f"q must be [rows, heads, nope + {self.rope.dim}], found {self.q.shape}",
        )
        out, heads = self.weight.shape[0], self.q.shape[1]
        self.require(
            out % heads == 0 and out // heads > self.nope,
            f"{out} weight rows are not heads {heads} x (nope {self.nope} + value)",
        )
        self.require(self.weight.split == 0 or self.q.split is None, "q and the weight must be divided by heads alike")

    def reference(self, run: Run, *, q: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """fp32 sums per head; both parts rounded once."""
        heads = q.shape[1]
        keys = np.ascontiguousarray(weight.reshape(heads, -1, weight.shape[1])[:, : self.nope])  # [heads, nope, latent]
        rotated = self.rope.rotate(q[..., self.nope :], run.rows.position)
        absorbed = np.stack([np.matmul(row[:, None, : self.nope], keys)[:, 0] for row in q])
        return run.num.store(np.concatenate([absorbed, rotated], axis=2))

    def cost(self, load: Load) -> Cost:
        """The key half of kv_b once for all rows."""
        elements = self.q.shape[1] * self.nope * self.weight.shape[1]
        return Cost(elements * 2, row_traffic(load, self.q), row_traffic(load, self.y), 2 * load.rows * elements)
