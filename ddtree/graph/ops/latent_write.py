"""The cache row of multi-head latent attention, made where it is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import CacheRows, Op, Run, row_traffic
from ddtree.graph.ops.cache_write import CacheWrite
from ddtree.graph.ops.mla_latent import MlaLatent
from ddtree.graph.rope import Rope
from ddtree.graph.tensor import Cache, Tensor, Weight


@dataclass(frozen=True, kw_only=True)
class LatentWrite(Op):
    """Store [rms_norm(latent) | rope(key)] of each row in a cache, bit for bit what MlaLatent and CacheWrite do.

    x       [rows, latent + rope] bf16, the output of kv_a_proj_with_mqa
    weight  [latent] bf16 of the latent's RMSNorm
    cache   rows of latent + rope elements; see graph/rows.py for where a row goes
    rope    rotates the last rope.dim elements by the row's position
    eps     of the norm
    """

    x: Tensor
    weight: Weight
    cache: Cache
    rope: Rope
    eps: float
    template = "latent_write"
    outputs = ()
    writes_cache = True

    @classmethod
    def infer(cls, **_: Any) -> dict[str, Tensor]:
        """No output tensor."""
        return {}

    def parts(self) -> tuple[MlaLatent, CacheWrite]:
        """The ops that it stands for; the row between them has no name."""
        row = replace(self.x, name="")
        latent = MlaLatent(x=self.x, weight=self.weight, y=row, rope=self.rope, eps=self.eps, origin=self.origin)
        return latent, CacheWrite(x=row, cache=self.cache, origin=self.origin)

    def check(self) -> None:
        """What both ops want."""
        for part in self.parts():
            part.check()

    def reference(self, run: Run, *, x: np.ndarray, weight: np.ndarray, cache: CacheRows) -> tuple[()]:
        """One op after the other."""
        latent, write = self.parts()
        return write.reference(run, x=latent.reference(run, x=x, weight=weight), cache=cache)

    def cost(self, load: Load) -> Cost:
        """Both ops, but the row goes to the cache at once instead of through a tensor."""
        latent, write = self.parts()
        both, row = latent.cost(load) + write.cost(load), row_traffic(load, latent.y)
        return replace(both, read=both.read - row, write=both.write - row)
