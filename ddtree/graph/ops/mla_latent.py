"""The cache row of multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.ops.rms_norm import rms_norm
from ddtree.graph.rope import Rope
from ddtree.graph.tensor import Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class MlaLatent(Op):
    """Turn the joint key-value projection into the row that MLA caches: [rms_norm(latent) | rope(key)].

    x       [rows, latent + rope] bf16, the output of kv_a_proj_with_mqa
    weight  [latent] bf16 of the latent's RMSNorm (rounding points of RmsNorm)
    y       [rows, latent + rope] bf16
    rope    rotates the last rope.dim elements by the row's position; they are not normalised
    eps     of the norm

    Source: DeepSeek-V2 (2024), section 2.1.
    """

    x: Tensor
    weight: Weight
    y: Tensor
    rope: Rope
    eps: float
    template = "mla_latent"

    @classmethod
    def infer(cls, *, x: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of x."""
        return {"y": Tensor("", x.shape)}

    def check(self) -> None:
        """latent + rope elements a row, whole on every rank."""
        latent = self.weight.shape[0]
        self.require(self.eps > 0, f"eps must be positive, found {self.eps}")
        self.require(self.x.split is None, "the latent row must be whole on every rank")
        self.require(
            self.x.width == latent + self.rope.dim,
            f"rows of {self.x.width} are not latent {latent} + rope {self.rope.dim}",
        )

    def reference(self, run: Run, *, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Norm and rotation, each rounded where it is stored."""
        latent = len(weight)
        head = rms_norm(x[:, :latent], weight, self.eps, run.num)
        return np.concatenate([head, run.num.store(self.rope.rotate(x[:, latent:], run.rows.position))], axis=1)

    def cost(self, load: Load) -> Cost:
        """One pass."""
        return Cost(
            self.weight.nbytes, row_traffic(load, self.x), row_traffic(load, self.y), 4 * load.rows * self.x.width
        )
