"""What a model's steps do and cost, as text and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op
from ddtree.graph.step_graph import StepGraph

ROWS = (1, 8, 16, 32, 64)


def amount(nbytes: float) -> str:
    """Bytes in decimal units."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes:.0f} B"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A text table; the first column is left-aligned, the others right."""
    all_rows = [list(head), *map(list, rows)]
    widths = [max(len(r[i]) for r in all_rows) for i in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
        for r in all_rows
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def costs(graph: StepGraph, context: int) -> dict[int, Cost]:
    """Cost of a step at several row counts."""
    return {rows: graph.cost(Load(rows, context)) for rows in ROWS if rows <= graph.rows}


def by_op(graph: StepGraph, load: Load) -> list[tuple[str, int, Cost]]:
    """Ops of a step by name: how many, and their cost together; the dearest first."""
    counts: Counter[str] = Counter(op.name() for op in graph.ops)
    totals = {name: sum((op.cost(load) for op in graph.ops if op.name() == name), Cost()) for name in counts}
    return sorted(((n, counts[n], totals[n]) for n in counts), key=lambda item: -item[2].bytes)


def _describe(op: Op) -> tuple[str, ...]:
    def shapes(tensors: Iterable[Any]) -> str:
        return ", ".join(f"{t.name}{list(t.shape)}" for t in tensors)

    return (op.name(), shapes(op.reads()), shapes(op.writes()) or ", ".join(c.name for c in op.caches()), op.origin)


def explain(graphs: Sequence[StepGraph], *, context: int, verbose: bool = False) -> str:
    """Steps and costs of one rank. `verbose` lists every op with its tensors and its YAML place."""
    parts = []
    for g in graphs:
        load = Load(min(8, g.rows), context)
        parts.append(f"step {g.name}: {len(g.ops)} ops, at most {g.rows} rows, arena {amount(g.arena)}")
        if verbose:
            parts.append(table(("op", "reads", "writes", "from"), map(_describe, g.ops)))
        rows = [
            (n, str(k), amount(c.weights), amount(c.read + c.write), f"{c.flops / 1e9:.3f}")
            for n, k, c in by_op(g, load)
        ]
        parts.append(table((f"at {load.rows} rows, context {context}", "ops", "weights", "activations", "GFLOP"), rows))
        at = [
            (str(r), amount(c.weights), amount(c.bytes), f"{c.flops / 1e9:.3f}") for r, c in costs(g, context).items()
        ]
        parts.append(table(("rows", "weights", "bytes", "GFLOP"), at))
    return "\n\n".join(parts)


def as_data(graphs: Sequence[StepGraph], *, context: int) -> dict[str, Any]:
    """The same as a JSON-ready object."""
    return {
        "rank": graphs[0].shard.rank,
        "ranks": graphs[0].shard.size,
        "steps": [
            {
                "name": g.name,
                "ops": len(g.ops),
                "rows": g.rows,
                "arena": g.arena,
                "cost": {
                    str(r): {"weights": c.weights, "bytes": c.bytes, "flops": c.flops}
                    for r, c in costs(g, context).items()
                },
            }
            for g in graphs
        ],
    }
