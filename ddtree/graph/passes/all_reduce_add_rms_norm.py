"""Fusion of a sum over the ranks with the addition and the norm that read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ddtree.graph.op import Op
from ddtree.graph.ops import AddRmsNorm, AllReduce, AllReduceAddRmsNorm
from ddtree.graph.step_graph import StepGraph


def fuse_all_reduce(graph: StepGraph) -> StepGraph:
    """Every AllReduce whose result one AddRmsNorm reads and nothing else becomes one op with it, at the place of the latter."""
    readers = Counter(t.name for op in graph.ops for t in op.reads())
    readers.update(t.name for t in graph.outputs.values())
    alone = {op.y.name: op for op in graph.ops if isinstance(op, AllReduce) and readers[op.y.name] == 1}
    fused: dict[str, AllReduce] = {}
    for op in graph.ops:
        if isinstance(op, AddRmsNorm) and (total := op.b if op.b.name in alone else op.a).name in alone:
            fused[op.sum.name] = alone.pop(total.name)
    gone = {reduction.y.name for reduction in fused.values()}
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, AddRmsNorm) and (reduction := fused.get(op.sum.name)):
            residual = op.a if op.b.name == reduction.y.name else op.b
            ops.append(
                AllReduceAddRmsNorm(
                    x=reduction.x, a=residual, weight=op.weight, sum=op.sum, y=op.y, ranks=reduction.ranks, eps=op.eps,
                    origin=op.origin,
                )
            )  # fmt: skip
        elif not (isinstance(op, AllReduce) and op.y.name in gone):
            ops.append(op)
    return replace(graph, ops=tuple(ops))
