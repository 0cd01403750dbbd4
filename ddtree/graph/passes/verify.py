"""The checker that runs after every pass. It finds what a pass broke, not what a user wrote."""

from __future__ import annotations

from ddtree.graph.op import OpError
from ddtree.graph.passes.memory import lifetimes
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Cache, Tensor, Weight


class BrokenGraphError(AssertionError):
    """A graph that violates an invariant; always a fault of the pass named in the message."""


def verify(graph: StepGraph, after: str) -> None:
    """Check that every tensor is written once before it is read, that equal names mean equal things, that every op's
    operands fit, and that tensors that live at the same time do not share memory. `after` names the pass."""

    def broken(message: str) -> BrokenGraphError:
        return BrokenGraphError(f"after {after}: step {graph.name}: {message}")

    known: dict[str, Tensor | Weight | Cache] = {t.name: t for t in graph.inputs.values()}
    for op in graph.ops:
        for field, operand in op.operands():
            written = field in op.outputs
            if isinstance(operand, Tensor) and written == (operand.name in known):
                raise broken(
                    f"{op.name()} {'writes' if written else 'reads'} {operand.name!r} {'twice' if written else 'before it is written'}"
                )
            if known.setdefault(operand.name, operand) != operand:
                raise broken(f"{operand.name!r} means two different things")
        try:
            op.check()
        except OpError as e:
            raise broken(f"{op.name()} ({op.origin}): {e}") from None
    for name, tensor in graph.outputs.items():
        if known.get(tensor.name) != tensor:
            raise broken(f"output {name!r} is not written")
    if graph.offsets:
        _no_overlap(graph)


def _no_overlap(graph: StepGraph) -> None:
    spans = sorted(
        (first, last, graph.offsets[name], name)
        for name, (first, last) in lifetimes(graph).items()
        if name in graph.offsets
    )
    sizes = {name: t.nbytes for name, t in graph.tensors().items()}
    for i, (first, last, offset, name) in enumerate(spans):
        for first2, _, offset2, name2 in spans[i + 1 :]:
            if first2 > last:
                break
            if offset < offset2 + sizes[name2] and offset2 < offset + sizes[name]:
                raise BrokenGraphError(
                    f"after memory: step {graph.name}: {name!r} and {name2!r} live together at op {first} and share bytes"
                )


def verify_ranks(graphs: list[StepGraph]) -> None:
    """Check that all ranks run the same ops in the same order, so that their collectives meet."""
    kinds = [[(type(op).__name__, op.origin) for op in g.ops] for g in graphs]
    if any(k != kinds[0] for k in kinds):
        raise BrokenGraphError(f"after shard: step {graphs[0].name}: ranks run different ops")
