"""When a sequence ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run
from ddtree.graph.ops.sample import NO_TOKEN
from ddtree.graph.tensor import DType, Tensor


@dataclass(frozen=True, kw_only=True)
class Stop(Op):
    """Find where a round's tokens end: at the first stop id, itself kept, at the token limit, or before a missing token.

    emitted, length  (Accept)
    remaining        [sequences] int32, tokens that may still be produced
    kept             [sequences] int32, tokens of the round that belong to the text
    done             [sequences] int32: 0 goes on, 1 a stop id was met, 2 the limit was reached, 3 a token is missing
                     (-1: the target's logits held no distribution, see Sample)
    ids              the stop ids
    """

    emitted: Tensor
    length: Tensor
    remaining: Tensor
    kept: Tensor
    done: Tensor
    ids: tuple[int, ...]
    template = "stop"
    outputs = ("kept", "done")

    @classmethod
    def infer(cls, *, length: Tensor, **_: Any) -> dict[str, Tensor]:
        """One value per sequence."""
        return {name: Tensor("", length.shape, DType.INT32) for name in ("kept", "done")}

    def reference(
        self, run: Run, *, emitted: np.ndarray, length: np.ndarray, remaining: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Within the limit the first stop id or missing token decides."""
        kept, done = np.minimum(length, remaining).astype(np.int32), np.zeros(len(length), np.int32)
        for s in range(len(length)):
            tokens = emitted[s, : kept[s]]
            hit = np.flatnonzero(np.isin(tokens, (*self.ids, NO_TOKEN)))
            if len(hit):
                missing = tokens[hit[0]] == NO_TOKEN
                kept[s], done[s] = hit[0] + (not missing), 3 if missing else 1
            elif length[s] and kept[s] == remaining[s]:
                done[s] = 2
        return kept, done

    def cost(self, load: Load) -> Cost:
        """A few integers."""
        return Cost(read=4 * load.rows, write=8 * load.sequences)
