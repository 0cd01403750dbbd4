"""Move the accepted path from scratch to pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import CacheRows, Op, Run
from ddtree.graph.tensor import Cache, Tensor


@dataclass(frozen=True, kw_only=True)
class CacheCommit(Op):
    """Copy the cache rows of the accepted path to the positions after the committed ones, bit for bit, in every layer.

    path, length  (Accept)
    layers        caches of all layers whose caches have rows of one kind

    Rows need no second rotation: a node at depth d was rotated for position committed + d, where it now goes.
    """

    path: Tensor
    length: Tensor
    layers: tuple[Cache, ...]
    template = "cache_commit"
    outputs = ()

    @classmethod
    def infer(cls, **_: Any) -> dict[str, Tensor]:
        """No output tensor."""
        return {}

    def check(self) -> None:
        """At least one cache, and rows of one kind."""
        kinds = {(c.row, c.dtype, c.window) for c in self.layers}
        self.require(len(kinds) == 1, f"caches of one kind are wanted, found {len(kinds)} kinds")

    def reference(self, run: Run, *, path: np.ndarray, length: np.ndarray, layers: list[CacheRows]) -> tuple[()]:
        """Sequence by sequence, layer by layer."""
        for s in np.flatnonzero(length):
            for cache in layers:
                cache.commit(run.rows, int(s), path[s, : length[s]])
        return ()

    def cost(self, load: Load) -> Cost:
        """One row a layer read and written per committed position."""
        size = load.rows * sum(c.row_bytes for c in self.layers)
        return Cost(read=size, write=size)
