"""Grouping of linears that read the same rows."""

from __future__ import annotations

from dataclasses import replace

from ddtree.graph.op import Op
from ddtree.graph.ops import Linear, LinearGroup
from ddtree.graph.step_graph import StepGraph


def group_linears(graph: StepGraph) -> StepGraph:
    """All linears of one input and result type become one op at the place of the first: they read nothing else that a step
    computes. A linear whose sum the ranks must add stays alone, next to its all-reduce."""
    groups: dict[tuple[str, str], list[Linear]] = {}
    for op in graph.ops:
        if isinstance(op, Linear) and not op.is_partial():
            groups.setdefault((op.x.name, op.dtype), []).append(op)
    ops: list[Op] = []
    for op in graph.ops:
        members = groups.get((op.x.name, op.dtype), []) if isinstance(op, Linear) and not op.is_partial() else []
        if len(members) < 2:
            ops.append(op)
        elif members[0] is op:
            matrices, ys = tuple(m.weight for m in members), tuple(m.y for m in members)
            ops.append(LinearGroup(x=members[0].x, matrices=matrices, ys=ys, dtype=members[0].dtype, origin=op.origin))
    return replace(graph, ops=tuple(ops))
