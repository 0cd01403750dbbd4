"""Store rows in a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import CacheRows, Op, Run, row_traffic
from ddtree.graph.tensor import Cache, Tensor


@dataclass(frozen=True, kw_only=True)
class CacheWrite(Op):
    """Store each row of x in a cache: tree rows in the sequence's scratch, committed rows in its pages.

    x      [rows, ...] bf16, as many elements a row as the cache's row
    cache  pages of 64 positions; see graph/rows.py for where a row goes
    """

    x: Tensor
    cache: Cache
    template = "cache_write"
    outputs = ()
    writes_cache = True

    @classmethod
    def infer(cls, **_: Any) -> dict[str, Tensor]:
        """No output tensor."""
        return {}

    def check(self) -> None:
        """Row widths agree."""
        self.require(
            self.x.shape[1:] == self.cache.row, f"rows of {self.x.shape[1:]} do not fit cache rows of {self.cache.row}"
        )

    def reference(self, run: Run, *, x: np.ndarray, cache: CacheRows) -> tuple[()]:
        """Exact: a copy."""
        cache.write(run.rows, x)
        return ()

    def cost(self, load: Load) -> Cost:
        """One row read and written."""
        return Cost(read=row_traffic(load, self.x), write=row_traffic(load, self.x))
