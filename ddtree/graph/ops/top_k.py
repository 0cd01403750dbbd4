"""Best candidates of each drafted slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run, row_traffic
from ddtree.graph.tensor import DType, Tensor


@dataclass(frozen=True, kw_only=True)
class TopK(Op):
    """The k largest logits of each row as log-probabilities over the whole vocabulary, best first.

    logits    [rows, vocab] fp32
    log_prob  [rows, k] fp32: logit - log(sum(exp(logits)))
    token     [rows, k] int32; equal logits take the lower token id first
    """

    logits: Tensor
    log_prob: Tensor
    token: Tensor
    k: int
    template = "top_k"
    whole = ("logits",)
    outputs = ("log_prob", "token")

    @classmethod
    def infer(cls, *, logits: Tensor, k: int, **_: Any) -> dict[str, Tensor]:
        """k entries a row."""
        shape = (logits.shape[0], k)
        return {"log_prob": Tensor("", shape, DType.FP32), "token": Tensor("", shape, DType.INT32)}

    def check(self) -> None:
        """k fits the vocabulary, which is whole."""
        self.require(1 <= self.k <= self.logits.shape[1], f"k must be 1..{self.logits.shape[1]}, found {self.k}")
        self.require(self.logits.dtype is DType.FP32, "logits must be fp32")

    def reference(self, run: Run, *, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Stable sort by falling logit."""
        token = np.argsort(-logits, axis=1, kind="stable")[:, : self.k].astype(np.int32)
        top = logits.max(axis=1, keepdims=True)
        log_sum = top + np.log(np.sum(np.exp(logits - top), axis=1, keepdims=True, dtype=np.float32))
        return np.take_along_axis(logits, token, axis=1) - log_sum, token

    def cost(self, load: Load) -> Cost:
        """One pass over the logits."""
        read = row_traffic(load, self.logits)
        return Cost(read=read, write=row_traffic(load, self.log_prob, self.token), flops=read)
