"""The target's next token after each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import DType, Tensor

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_MASS = np.float32(2**40)  # unit of probability masses: sums of 2**23 of them fit a signed 64-bit integer
NO_TOKEN = -1


def philox(seed: int, position: int, count: int) -> np.ndarray:
    """First word of Philox4x32-10 for counters (token, position, 0, 0), token = 0..count-1: [count] uint32.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). The key is the 64-bit seed.
    """
    c = [
        np.arange(count, dtype=np.uint64),
        np.full(count, position & 0xFFFFFFFF, np.uint64),
        np.zeros(count, np.uint64),
        np.zeros(count, np.uint64),
    ]
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = c[0] * _MULTIPLIERS[0], c[2] * _MULTIPLIERS[1]
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            p0 & _LOW,
        ]
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c[0].astype(np.uint32)


def gumbel(seed: int, position: int, count: int) -> np.ndarray:
    """Standard Gumbel noise of each token at a position, [count] float32: -log(-log1p(-u)).

    u is the Philox word as a fraction of 2**32, kept below 1 so that the noise is finite. Written through log1p, so that
    the largest values, which decide the maximum, come from the small u, where float32 is finest.
    """
    u = (philox(seed, position, count).astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
    return -np.log(-np.log1p(-np.minimum(u, np.float32(1 - 2**-24))))


def allowed(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Logits / temperature with excluded tokens at -inf, [vocab] float32.

    First the top_k largest (0: all), then the nucleus: by falling probability a token stays if the mass before it is
    below top_p of the whole; the first always stays. Equal logits take the lower id first.

    Masses are relative to the largest, in whole units of 2**-40, so that their sums do not depend on the order.
    """
    scaled = logits / np.float32(temperature)
    if (top_k <= 0 or top_k >= len(logits)) and top_p >= 1:
        return scaled
    order = np.argsort(-scaled, kind="stable")
    kept = order[: top_k if top_k > 0 else None]
    if top_p < 1:
        mass = (np.exp(scaled[kept] - scaled[order[0]]) * _MASS).astype(np.int64)
        total = np.cumsum(mass)
        kept = kept[total - mass < max(1, math.ceil(np.float32(top_p).astype(float) * float(total[-1])))]
    masked = np.full_like(scaled, -np.inf)
    masked[kept] = scaled[kept]
    return masked


@dataclass(frozen=True, kw_only=True)
class Sample(Op):
    """Choose the token that follows each row: the argmax, or a draw from the target's distribution.

    logits       [rows, vocab] fp32
    temperature  [sequences] fp32; 0 is greedy, equal logits take the lower id
    top_k        [sequences] int32; 0 keeps all       top_p  [sequences] fp32; 1 keeps all
    seed         [sequences] int64
    token        [rows] int32; -1 when a logit is NaN or +inf, or all are -inf: there is no distribution to choose from

    The draw is argmax(allowed + gumbel(seed, position)), the Gumbel-max trick (Gumbel, 1954): exact, and the noise
    belongs to the position that the token will take, so a seed gives the same text with and without a tree.
    """

    logits: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    token: Tensor
    template = "sample"
    whole = ("logits",)
    outputs = ("token",)

    @classmethod
    def infer(cls, *, logits: Tensor, **_: Any) -> dict[str, Tensor]:
        """One token a row."""
        return {"token": Tensor("", logits.shape[:1], DType.INT32)}

    def check(self) -> None:
        """Logits are fp32."""
        self.require(self.logits.dtype is DType.FP32, "logits must be fp32")

    def reference(self, run: Run, *, logits: np.ndarray, **request: np.ndarray) -> np.ndarray:
        """Row by row, each with its own sequence's request."""
        rows = run.rows.wanted if run.rows.wanted is not None else np.arange(len(run.rows))
        token = np.empty(len(logits), np.int32)
        for i, r in enumerate(rows):
            s, position = int(run.rows.sequence[r]), int(run.rows.position[r]) + 1
            if not (logits[i] < np.inf).all() or logits[i].max() == -np.inf:
                token[i] = NO_TOKEN
                continue
            if request["temperature"][s] == 0:
                token[i] = np.argmax(logits[i])
                continue
            kept = allowed(
                logits[i], float(request["temperature"][s]), int(request["top_k"][s]), float(request["top_p"][s])
            )
            token[i] = np.argmax(kept + gumbel(int(request["seed"][s]), position, len(kept)))
        return token

    def cost(self, load: Load) -> Cost:
        """One pass over the logits."""
        return Cost(read=row_traffic(load, self.logits), write=row_traffic(load, self.token))
