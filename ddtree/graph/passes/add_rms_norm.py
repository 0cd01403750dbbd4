"""Fusion of a residual addition with the norm that reads its sum."""

from __future__ import annotations

from dataclasses import replace

from ddtree.graph.op import Op
from ddtree.graph.ops import Add, AddRmsNorm, RmsNorm
from ddtree.graph.step_graph import StepGraph


def fuse_add_rms_norm(graph: StepGraph) -> StepGraph:
    """Every addition whose sum a norm of whole rows reads becomes one op with the first such norm.

    The sum is still written, so its other readers do not notice. The norm moves up to the addition: it reads nothing else
    that a step computes.
    """
    sums = {op.y.name for op in graph.ops if isinstance(op, Add)}
    norms: dict[str, RmsNorm] = {}
    for op in graph.ops:
        if isinstance(op, RmsNorm) and op.x.name in sums and len(op.x.shape) == 2:
            norms.setdefault(op.x.name, op)
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Add) and (norm := norms.get(op.y.name)):
            ops.append(
                AddRmsNorm(
                    a=op.a, b=op.b, weight=norm.weight, sum=op.y, y=norm.y, eps=norm.eps, origin=op.origin
                )
            )  # fmt: skip
        elif not (isinstance(op, RmsNorm) and norms.get(op.x.name) is op):
            ops.append(op)
    return replace(graph, ops=tuple(ops))
