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
    alive: dict[int, list[tuple[int, int]]] = {}  # start and end of what is placed already, by op index
    offsets: dict[str, int] = {}
    arena = 0
    for name in sorted(spans, key=lambda n: (-size[n], spans[n], n)):
        first, last = spans[name]
        at = 0
        for start, end in sorted({span for op in range(first, last + 1) for span in alive.get(op, ())}):
            if at + size[name] <= start:
                break
            at = max(at, end)
        offsets[name] = at
        arena = max(arena, at + size[name])
        for op in range(first, last + 1):
            alive.setdefault(op, []).append((at, at + size[name]))
    return replace(graph, offsets=offsets, arena=arena)
