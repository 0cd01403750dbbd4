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
    """Copy the cache rows of the accepted path to the positions after the committed ones, bit for bit.

    path, length  (Accept)
    cache         one layer's cache

    Rows need no second rotation: a node at depth d was rotated for position committed + d, where it now goes.
    """

    path: Tensor
    length: Tensor
    cache: Cache
    template = "cache_commit"
    outputs = ()

    @classmethod
    def infer(cls, **_: Any) -> dict[str, Tensor]:
        """No output tensor."""
        return {}

    def reference(self, run: Run, *, path: np.ndarray, length: np.ndarray, cache: CacheRows) -> tuple[()]:
        """Sequence by sequence."""
        for s in np.flatnonzero(length):
            cache.commit(run.rows, int(s), path[s, : length[s]])
        return ()

    def cost(self, load: Load) -> Cost:
        """One row read and written per committed position."""
        return Cost(read=load.rows * self.cache.row_bytes, write=load.rows * self.cache.row_bytes)
