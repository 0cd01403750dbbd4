"""Attention of a draft block over the drafter's context and the block itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.numerics import softmax
from ddtree.graph.op import CacheRows, Op, Run, row_traffic
from ddtree.graph.tensor import Cache, Tensor


@dataclass(frozen=True, kw_only=True)
class DraftAttention(Op):
    """Grouped-query attention of each block row over cached context and the rows of its own block.

    q       [rows, heads, dim] bf16, normalised and rotated
    k, v    [rows, kv_heads, dim] bf16 of the block, k normalised and rotated; never cached
    keys, values  caches of the context, rows [kv_heads, dim]
    y       [rows, heads, dim] bf16
    window  0: every key is near enough. W: a key at distance W or more from the query is hidden, the query itself counted
    causal  whether a query is blind to later rows of the block

    The block's rows come after the context: none has a position below the committed length.
    scale = dim**-0.5; query head h reads key-value head h // (heads / kv_heads). Scores, softmax and sums in fp32; one
    rounding. (Kernels also round each weight, not their sum, to BF16 before it meets the values.)
    Source: DFlash (Chen et al., arXiv 2602.06036) and its published checkpoints.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    keys: Cache
    values: Cache
    y: Tensor
    window: int
    causal: bool
    template = "draft_attention"

    @classmethod
    def infer(cls, *, q: Tensor, **_: Any) -> dict[str, Tensor]:
        """The shape of q."""
        return {"y": Tensor("", q.shape, split=q.split)}

    def check(self) -> None:
        """Heads divide evenly and the caches hold what k and v hold."""
        self.require(self.window >= 0, f"window must be 0 (unlimited) or positive, found {self.window}")
        self.require(
            self.q.shape[1] % self.k.shape[1] == 0,
            f"{self.q.shape[1]} query heads do not divide by {self.k.shape[1]} key heads",
        )
        self.require(self.k.shape == self.v.shape, f"k {self.k.shape} and v {self.v.shape} differ")
        self.require(
            self.k.shape[1:] == self.keys.row == self.values.row,
            f"k rows {self.k.shape[1:]} do not fit the caches {self.keys.row}",
        )
        for cache in (self.keys, self.values):
            kept = cache.window
            self.require(
                kept is None or 0 < self.window <= kept,
                f"cache {cache.name} keeps {kept} positions, fewer than window {self.window}",
            )

    def reference(
        self, run: Run, *, q: np.ndarray, k: np.ndarray, v: np.ndarray, keys: CacheRows, values: CacheRows
    ) -> np.ndarray:
        """Row by row; each row slices its own window."""
        y = np.empty(q.shape, np.float32)
        group, scale = q.shape[1] // k.shape[1], np.float32(q.shape[2] ** -0.5)
        for r in range(len(q)):
            sequence, position = int(run.rows.sequence[r]), int(run.rows.position[r])
            first = max(0, position - self.window + 1) if self.window else 0
            block = run.rows.of(sequence)
            at = run.rows.position[block]
            far = np.abs(at - position) >= self.window if self.window else np.zeros(len(block), bool)
            seen = block[~far & ((at <= position) if self.causal else True)]
            rk = np.concatenate([keys.committed(run.rows, sequence, first), k[seen]])
            rv = np.concatenate([values.committed(run.rows, sequence, first), v[seen]])
            heads = q[r].reshape(k.shape[1], group, -1)
            scores = np.matmul(heads, rk.transpose(1, 2, 0)) * scale
            y[r] = np.matmul(softmax(scores), rv.transpose(1, 0, 2)).reshape(q.shape[1:])
        return run.num.store(y)

    def cost(self, load: Load) -> Cost:
        """The visible context once per sequence."""
        context = min(load.context, self.window) if self.window else load.context
        keys = context * load.sequences * (self.keys.row_bytes + self.values.row_bytes)
        flops = 4 * load.rows * (context + load.rows // max(1, load.sequences)) * self.q.width
        return Cost(read=row_traffic(load, self.q, self.k, self.v) + keys, write=row_traffic(load, self.y), flops=flops)
