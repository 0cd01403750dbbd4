"""Multi-head latent attention over committed positions and a draft tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.numerics import softmax
from ddtree.graph.op import CacheRows, Op, Run, row_traffic
from ddtree.graph.rope import Rope
from ddtree.graph.tensor import Cache, Tensor


@dataclass(frozen=True, kw_only=True)
class MlaTreeAttention(Op):
    """Attend from absorbed queries to cached latents; one key-value head serves all query heads.

        s = scale * q . k,   p = softmax(s),   y = sum p * k[:latent]

    q      [rows, heads, latent + rope] bf16 (MlaQuery)
    cache  rows of latent + rope bf16 (MlaLatent)
    y      [rows, heads, latent] bf16
    head   elements of an unabsorbed query head, nope + rope: scale = head**-0.5 * rope.softmax_gain
    rope   the rule that rotated queries and keys

    A row at position p sees p + 1 keys: committed positions, then its ancestors in the tree, itself last, in position
    order. So a tree row sees what plain decoding of its path would see, key for key. Prompt rows see the positions up to
    their own. Scores, softmax and sums in fp32; one rounding. (Kernels also round to BF16 each weight p, not their sum,
    before it meets the values, since tensor cores take no wider operand; and of tree rows the sum over each part of the
    context that a block takes, before the parts are added in fp32.)
    """

    q: Tensor
    cache: Cache
    y: Tensor
    rope: Rope
    head: int
    template = "mla_tree_attention"

    @classmethod
    def infer(cls, *, q: Tensor, rope: Rope, **_: Any) -> dict[str, Tensor]:
        """Every head becomes latent wide."""
        return {"y": Tensor("", (*q.shape[:2], q.shape[2] - rope.dim), split=q.split)}

    @property
    def scale(self) -> float:
        """Factor on the scores."""
        return self.head**-0.5 * self.rope.softmax_gain

    def check(self) -> None:
        """Queries are as wide as cache rows."""
        self.require(
            self.head > self.rope.dim, f"head must be nope + rope, more than {self.rope.dim}, found {self.head}"
        )
        self.require(
            (self.q.shape[2],) == self.cache.row,
            f"queries of {self.q.shape[2]} do not fit cache rows of {self.cache.row}",
        )
        self.require(self.cache.split is None, "a latent cache has one head and must be whole on every rank")

    def reference(self, run: Run, *, q: np.ndarray, cache: CacheRows) -> np.ndarray:
        """Row by row over gathered keys."""
        latent, scale = self.y.shape[2], np.float32(self.scale)
        y = np.empty((len(q), *self.y.shape[1:]), np.float32)
        for r in range(len(q)):
            keys = cache.gather(run.rows, r)
            y[r] = softmax(q[r] @ keys.T * scale) @ keys[:, :latent]
        return run.num.store(y)

    def cost(self, load: Load) -> Cost:
        """The committed keys once for all rows of a sequence, the tree's keys once per row."""
        keys = load.context * load.sequences + load.rows
        flops = 2 * load.rows * (load.context + 1) * self.q.shape[1] * (self.q.shape[2] + self.y.shape[2])
        return Cost(
            read=row_traffic(load, self.q) + keys * self.cache.row_bytes, write=row_traffic(load, self.y), flops=flops
        )
