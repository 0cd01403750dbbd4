"""Values of multi-head latent attention in absorbed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class MlaValue(Op):
    """Expand attended latents to head values: y[h] = W_UV[h] @ z[h].

    z       [rows, heads, latent] bf16
    weight  [heads * (nope + value), latent] bf16, kv_b_proj; W_UV[h] is the last `value` rows of head h
    y       [rows, heads, value] bf16
    value   elements of a head's value

    Source: DeepSeek-V2 (2024), appendix C.
    """

    z: Tensor
    weight: Weight
    y: Tensor
    value: int
    template = "mla_value"

    @classmethod
    def infer(cls, *, z: Tensor, value: int, **_: Any) -> dict[str, Tensor]:
        """Every head becomes `value` wide."""
        return {"y": Tensor("", (*z.shape[:2], value), split=z.split)}

    def check(self) -> None:
        """One group of weight rows per head, more than `value` each; latents as wide as the weight."""
        out, latent = self.weight.shape
        heads = self.z.shape[1]
        self.require(
            out % heads == 0 and out // heads > self.value,
            f"{out} weight rows are not heads {heads} x (nope + value {self.value})",
        )
        self.require(latent == self.z.shape[2], f"weight [{out}, {latent}] does not fit latents of {self.z.shape[2]}")

    def reference(self, run: Run, *, z: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """fp32 sums per head, rounded once."""
        heads = z.shape[1]
        values = np.ascontiguousarray(
            weight.reshape(heads, -1, weight.shape[1])[:, -self.value :]
        )  # [heads, value, latent]
        return run.num.store(np.stack([np.matmul(values, row[:, :, None])[..., 0] for row in z]))

    def cost(self, load: Load) -> Cost:
        """The value half of kv_b once for all rows."""
        elements = self.z.shape[1] * self.value * self.weight.shape[1]
        return Cost(elements * 2, row_traffic(load, self.z), row_traffic(load, self.y), 2 * load.rows * elements)
