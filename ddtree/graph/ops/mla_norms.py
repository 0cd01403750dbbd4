"""The two norms of MLA's inputs, of the query's latent and of the cache row, in one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import CacheRows, Op, Run
from ddtree.graph.ops.latent_write import LatentWrite
from ddtree.graph.ops.rms_norm import RmsNorm
from ddtree.graph.rope import Rope
from ddtree.graph.tensor import Cache, Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class MlaNorms(Op):
    """y = rms_norm(x) * weight, and the cache row of `latent`: bit for bit what RmsNorm and LatentWrite do, side by side.

    x, y           [rows, width] bf16            weight         [width] bf16      eps         of this norm
    latent         [rows, latent + rope] bf16    latent_weight  [latent] bf16     latent_eps  of that norm
    cache          rows of latent + rope elements
    rope           rotates the last rope.dim elements of the cache row
    """

    x: Tensor
    weight: Weight
    y: Tensor
    eps: float
    latent: Tensor
    latent_weight: Weight
    cache: Cache
    rope: Rope
    latent_eps: float
    template = "mla_norms"
    writes_cache = True

    @classmethod
    def infer(cls, *, x: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of x."""
        return RmsNorm.infer(x=x)

    def parts(self) -> tuple[RmsNorm, LatentWrite]:
        """The ops that it stands for."""
        norm = RmsNorm(x=self.x, weight=self.weight, y=self.y, eps=self.eps, origin=self.origin)
        write = LatentWrite(
            x=self.latent, weight=self.latent_weight, cache=self.cache, rope=self.rope, eps=self.latent_eps, origin=self.origin
        )  # fmt: skip
        return norm, write

    def check(self) -> None:
        """What both ops want, and rows of one axis."""
        self.require(len(self.x.shape) == 2, f"rows of one axis are wanted, found {self.x.shape[1:]}")
        for part in self.parts():
            part.check()

    def reference(
        self, run: Run, *, x: np.ndarray, weight: np.ndarray, latent: np.ndarray, latent_weight: np.ndarray, cache: CacheRows
    ) -> np.ndarray:  # fmt: skip
        """One op after the other."""
        norm, write = self.parts()
        write.reference(run, x=latent, weight=latent_weight, cache=cache)
        return norm.reference(run, x=x, weight=weight)

    def cost(self, load: Load) -> Cost:
        """Both ops."""
        norm, write = self.parts()
        return norm.cost(load) + write.cost(load)
