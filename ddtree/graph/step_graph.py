"""The step graph: the ops of one step in execution order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op
from ddtree.graph.tensor import WHOLE, Cache, Shard, Tensor, Weight

StepName = Literal["prefill", "draft", "verify", "commit", "store", "context"]
STEPS: tuple[StepName, ...] = ("prefill", "draft", "verify", "commit", "store", "context")


@dataclass(frozen=True)
class StepGraph:
    """One step of the decode loop for one rank.

    ops      in execution order; every tensor is written once, before it is read
    inputs   tensors that the caller supplies
    outputs  by the name that callers use: logits, features, ...
    rows     row capacity
    tree     True when its rows are tree nodes, which are cached in scratch; False for committed rows, cached in pages
    decode   True for generated rows (decode kernels), False for prompt rows (prefill kernels)
    offsets  arena offset in bytes of every tensor that an op writes, from the memory pass; empty before it
    """

    name: StepName
    ops: tuple[Op, ...]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    rows: int
    tree: bool
    decode: bool
    shard: Shard = WHOLE
    offsets: dict[str, int] = field(default_factory=dict)
    arena: int = 0

    def weights(self) -> dict[str, Weight]:
        """Every weight by name."""
        return {w.name: w for op in self.ops for w in op.weights()}

    def caches(self) -> dict[str, Cache]:
        """Every cache by name."""
        return {c.name: c for op in self.ops for c in op.caches()}

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, inputs included."""
        return {t.name: t for t in self.inputs.values()} | {t.name: t for op in self.ops for t in op.writes()}

    def cost(self, load: Load) -> Cost:
        """Sum over the ops."""
        return sum((op.cost(load) for op in self.ops), Cost())
