"""Tensor parallelism: every rank's share of the graph, and the collectives that join the shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ddtree.errors import SpecError
from ddtree.graph.op import Op, Operand, OpError
from ddtree.graph.ops import AllGather, AllReduce
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Shard, Tensor


def shard(graph: StepGraph, part: Shard) -> StepGraph:
    """The graph of rank `part.rank` of `part.size`.

    Divided axes shrink to the rank's part. An op that leaves a partial sum is followed by an all-reduce, a divided
    tensor that must be whole by an all-gather.
    """
    if part.size == 1:
        return graph
    ops: list[Op] = []
    gathered: dict[str, Tensor] = {}

    def whole(t: Tensor, origin: str) -> Tensor:
        if t.name not in gathered:
            mine = replace(t, shape=part.divide(t.shape, t.split))
            full = replace(t, name=f"{t.name}.gathered", split=None)
            ops.append(AllGather(x=mine, y=full, ranks=part.size, origin=origin))
            gathered[t.name] = full
        return gathered[t.name]

    for op in graph.ops:
        if op.whole:
            divided = {t.name: t for field in op.whole if (t := getattr(op, field)).split is not None}
            wholes = {name: whole(t, op.origin) for name, t in divided.items()}
            op = op.map_operands(lambda o, w=wholes: w.get(o.name, o))  # type: ignore[misc]
        mine = _part(op, part)
        if not mine.is_partial():
            ops.append(mine)
            continue
        (y,) = mine.writes()
        partial = replace(y, name=f"{y.name}.partial")
        ops.append(mine.map_operands(_rename(y, partial)))
        ops.append(AllReduce(x=partial, y=y, ranks=part.size, origin=op.origin))

    def mine_of(t: Tensor) -> Tensor:
        return gathered.get(t.name) or replace(t, shape=part.divide(t.shape, t.split))

    outputs = {name: mine_of(t) for name, t in graph.outputs.items()}
    return replace(graph, ops=tuple(ops), outputs=outputs, shard=part)


def _part(op: Op, part: Shard) -> Op:
    """The rank's share of an op; a share that the op cannot work with is the user's mistake, at the op's YAML line."""
    mine = op.shard(part)
    try:
        mine.check()
    except OpError as e:
        file, line, column = op.origin.rsplit(":", 2)
        message = f"{op.name()} on {part.size} ranks: {e}"
        raise SpecError(message, file=file, line=int(line), column=int(column), path="parallel.tensor") from None
    return mine


def _rename(old: Tensor, new: Tensor) -> Callable[[Operand], Operand]:
    return lambda o: new if o == old else o
