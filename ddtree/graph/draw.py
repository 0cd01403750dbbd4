"""Step graphs as Mermaid or Graphviz text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddtree.errors import UsageError
from ddtree.graph.op import Op
from ddtree.graph.step_graph import StepGraph

Edges = Iterable[tuple[str, str, str]]  # from, to, tensor


def _edges(graph: StepGraph) -> list[tuple[str, str, str]]:
    """Producer, consumer and tensor of every value that passes between ops, inputs and outputs."""
    writer = {t.name: f"in_{t.name}" for t in graph.inputs.values()}
    edges = []
    for i, op in enumerate(graph.ops):
        edges += [(writer[t.name], f"op{i}", t.name) for t in op.reads()]
        writer.update({t.name: f"op{i}" for t in op.writes()})
    return edges + [(writer[t.name], f"out_{name}", t.name) for name, t in graph.outputs.items()]


def _label(op: Op) -> str:
    weights = ", ".join(w.source for w in op.weights()[:1])
    return f"{op.name()}{f' {weights}' if weights else ''}"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def mermaid(graphs: Sequence[StepGraph]) -> str:
    """A Mermaid flowchart with one subgraph per step; GitHub renders it."""
    lines = ["flowchart TD"]
    for g in graphs:
        lines.append(f"  subgraph {g.name}")
        lines += [f'    {g.name}_op{i}["{_label(op)}"]' for i, op in enumerate(g.ops)]
        lines += [f"    {g.name}_{_identifier(f'in_{name}')}([{name}])" for name in g.inputs]
        lines += [f"    {g.name}_{_identifier(f'out_{name}')}([{name}])" for name in g.outputs]
        lines += [f"    {g.name}_{_identifier(a)} --> {g.name}_{_identifier(b)}" for a, b, _ in _edges(g)]
        lines.append("  end")
    return "\n".join(lines) + "\n"


def dot(graphs: Sequence[StepGraph]) -> str:
    """A Graphviz digraph with one cluster per step; edges carry tensor names."""
    lines = ["digraph ddtree {", "  node [shape=box, fontname=monospace];"]
    for g in graphs:
        lines.append(f'  subgraph cluster_{g.name} {{ label="{g.name}";')
        lines += [f'    {g.name}_op{i} [label="{_label(op)}"];' for i, op in enumerate(g.ops)]
        lines += [f'    {g.name}_{_identifier(f"in_{n}")} [label="{n}", shape=oval];' for n in g.inputs]
        lines += [f'    {g.name}_{_identifier(f"out_{n}")} [label="{n}", shape=oval];' for n in g.outputs]
        lines += [f'    {g.name}_{_identifier(a)} -> {g.name}_{_identifier(b)} [label="{t}"];' for a, b, t in _edges(g)]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def draw(graphs: Sequence[StepGraph], file: Path) -> None:
    """Write the graphs to `file`, in the format that its suffix names (.mmd or .dot). Raises UsageError."""
    formats = {".mmd": mermaid, ".dot": dot}
    if file.suffix not in formats:
        raise UsageError(f"--graph wants a file that ends in .mmd or .dot, found {file}")
    try:
        file.write_text(formats[file.suffix](graphs), encoding="utf-8")
    except OSError as e:
        raise UsageError(f"cannot write {file}: {e.strerror}") from None
