"""The memory plan: where in one arena each tensor of a step lives."""

from __future__ import annotations

from dataclasses import replace

from ddtree.graph.step_graph import StepGraph

ALIGNMENT = 256  # bytes; keeps every tensor fit for 16-byte accesses and for bulk copies


def lifetimes(graph: StepGraph) -> dict[str, tuple[int, int]]:
    """First and last op index at which each written tensor must keep its bytes. Outputs live to the end."""
    spans: dict[str, tuple[int, int]] = {}
    for i, op in enumerate(graph.ops):
        for t in op.writes():
            spans[t.name] = (i, i)
        for t in op.reads():
            if t.name in spans:
                spans[t.name] = (spans[t.name][0], i)
    for t in graph.outputs.values():
        if t.name in spans:
            spans[t.name] = (spans[t.name][0], len(graph.ops))
    return spans


def plan_memory(graph: StepGraph) -> StepGraph:
    """Give every written tensor an offset; tensors that are never alive together may share bytes.

    Largest first, each at the lowest offset that is free for its whole lifetime: within a few per cent of the peak for
    the chains that models are, and deterministic.
    """
    tensors = graph.tensors()
    spans = lifetimes(graph)
    size = {name: -(-tensors[name].nbytes // ALIGNMENT) * ALIGNMENT for name in spans}
    placed: list[tuple[int, int, int, int]] = []  # first op, last op, start, end
    offsets: dict[str, int] = {}
    for name in sorted(spans, key=lambda n: (-size[n], spans[n], n)):
        first, last = spans[name]
        at = 0
        for _, _, start, end in sorted((p for p in placed if p[0] <= last and first <= p[1]), key=lambda p: p[2]):
            if at + size[name] <= start:
                break
            at = max(at, end)
        offsets[name] = at
        placed.append((first, last, at, at + size[name]))
    return replace(graph, offsets=offsets, arena=max((end for *_, end in placed), default=0))
