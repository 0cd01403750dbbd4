"""The checker that runs after every pass. It finds what a pass broke, not what a user wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddtree.graph.op import Op, Operand, OpError
from ddtree.graph.passes.memory import ALIGNMENT, lifetimes
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Tensor


class BrokenGraphError(AssertionError):
    """A graph that violates an invariant; always a fault of the pass named in the message."""


def verify(graph: StepGraph, after: str) -> None:
    """Check that every tensor is written once before it is read, that equal names mean equal things, that every op's
    operands fit and its outputs follow its shape rule, and that the memory plan gives every tensor bytes of its own while
    it lives. `after` names the pass."""

    def broken(message: str) -> BrokenGraphError:
        return BrokenGraphError(f"after {after}: step {graph.name}: {message}")

    known: dict[tuple[type, str], Operand] = {(Tensor, t.name): t for t in graph.inputs.values()}
    for op in graph.ops:
        for field, operand in op.operands():
            written, key = field in op.outputs, (type(operand), operand.name)
            if isinstance(operand, Tensor) and written == (key in known):
                what = f"writes {operand.name!r} twice" if written else f"reads {operand.name!r} before it is written"
                raise broken(f"{op.name()} {what}")
            first = known.setdefault(key, operand)
            if first is not operand and first != operand:
                raise broken(f"{operand.name!r} means two different things")
        try:
            op.checked  # noqa: B018 (an op never changes, so that once is enough)
        except OpError as e:
            raise broken(f"{op.name()} ({op.origin}): {e}") from None
        if graph.shard.size == 1 and (field := _misshapen(op)):
            raise broken(f"{op.name()} ({op.origin}): {field} does not follow the shape rule")
    for name, tensor in graph.outputs.items():
        if known.get((Tensor, tensor.name)) != tensor:
            raise broken(f"output {name!r} is not written")
    if graph.offsets:
        _check_plan(graph, broken)


def _misshapen(op: Op) -> str:
    """The first output that is not what the op's shape rule says, up to the division of a row into axes."""
    for field, rule in type(op).infer(**vars(op)).items():
        made: Tensor = getattr(op, field)
        rows_fit = rule.domain == "wanted" or made.shape[0] == rule.shape[0]
        if made.dtype is not rule.dtype or made.width != rule.width or not rows_fit:
            return field
    return ""


def _check_plan(graph: StepGraph, broken: Callable[[str], BrokenGraphError]) -> None:
    """Every written tensor has bytes in the arena, and no other that lives at the same time has any of them."""
    tensors, spans = graph.tensors(), lifetimes(graph)
    for name in spans:
        start = graph.offsets.get(name, -1)
        if start < 0 or start % ALIGNMENT or start + tensors[name].nbytes > graph.arena:
            raise broken(f"{name!r} has no aligned place in the arena")
    order = sorted(spans, key=lambda name: spans[name])
    for i, name in enumerate(order):
        start, end = graph.offsets[name], graph.offsets[name] + tensors[name].nbytes
        for other in order[i + 1 :]:
            if spans[other][0] > spans[name][1]:
                break
            if start < graph.offsets[other] + tensors[other].nbytes and graph.offsets[other] < end:
                raise broken(f"{name!r} and {other!r} live together at op {spans[other][0]} and share bytes")


def verify_ranks(graphs: Sequence[StepGraph]) -> None:
    """Check that all ranks run the same ops in the same order on tensors of the same shapes at the same places, so that
    their collectives meet and a rank finds its peers' parts."""

    def plan(g: StepGraph) -> tuple[object, ...]:
        ops = [(type(op), op.origin, [(t.name, t.shape) for t in op.writes()]) for op in g.ops]
        return ops, g.offsets, g.arena

    first = plan(graphs[0])
    for g in graphs[1:]:
        if plan(g) != first:
            raise BrokenGraphError(f"after shard: step {g.name}: ranks 0 and {g.shard.rank} run different ops")
