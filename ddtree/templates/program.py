"""All kernels of a model's steps: one source for each distinct tile, whatever layers share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddtree.graph.model import Model
from ddtree.graph.op import Op
from ddtree.graph.ops import CacheWrite
from ddtree.graph.step_graph import StepGraph
from ddtree.templates.kernel import Kernel
from ddtree.templates.render import render
from ddtree.templates.target import Target

Tuning = Mapping[str, Mapping[str, int]]


def kernels_of_op(graph: StepGraph, op: Op, target: Target, tuning: Tuning) -> list[Kernel]:
    """The launches of one op of a step.

    Generated rows use decode kernels and prompt rows prefill kernels. Where a row is cached does not follow from that:
    the commit step runs decode kernels on rows that go to pages.
    """
    tree = graph.tree if isinstance(op, CacheWrite) else graph.decode
    return render(op, target, tree=tree, tuning=dict(tuning.get(op.name(), {})))


def program(graphs: Iterable[StepGraph], target: Target, tuning: Tuning) -> dict[str, Kernel]:
    """Every kernel by name; a name stands for one source, at the largest shared memory that any launch asks for."""
    kernels: dict[str, Kernel] = {}
    for graph in graphs:
        for op in graph.ops:
            for kernel in kernels_of_op(graph, op, target, tuning):
                known = kernels.get(kernel.name)
                if known and known.source != kernel.source:
                    raise AssertionError(f"tiles of {op.name()} name two sources {kernel.name}")
                if known is None or kernel.tile.smem > known.tile.smem:
                    kernels[kernel.name] = kernel
    return kernels


def tuning_of(model: Model, name: str) -> dict[str, dict[str, int]]:
    """The YAML's launch choices for a target, by op."""
    table = {str(target): ops for target, ops in model.target.spec.tuning.items()}
    return {str(op): choice.model_dump(exclude_none=True) for op, choice in table.get(name, {}).items()}
