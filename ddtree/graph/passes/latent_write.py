"""Fusion of MLA's cache row with the write that stores it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ddtree.graph.op import Op
from ddtree.graph.ops import CacheWrite, LatentWrite, MlaLatent
from ddtree.graph.step_graph import StepGraph


def fuse_latent_write(graph: StepGraph) -> StepGraph:
    """Every MlaLatent whose row goes to a cache and nowhere else becomes one op with that write, which keeps its place:
    whatever read the cache before the write or after it still does."""
    readers = Counter(t.name for op in graph.ops for t in op.reads())
    readers.update(t.name for t in graph.outputs.values())
    latents = {op.y.name: op for op in graph.ops if isinstance(op, MlaLatent) and readers[op.y.name] == 1}
    stored = {op.x.name for op in graph.ops if isinstance(op, CacheWrite)} & latents.keys()
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, CacheWrite) and op.x.name in stored:
            made = latents[op.x.name]
            ops.append(
                LatentWrite(
                    x=made.x, weight=made.weight, cache=op.cache, rope=made.rope, eps=made.eps, origin=made.origin
                )
            )  # fmt: skip
        elif not (isinstance(op, MlaLatent) and op.y.name in stored):
            ops.append(op)
    return replace(graph, ops=tuple(ops))
