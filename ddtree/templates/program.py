"""All kernels of a model's steps: one source for each distinct tile, whatever layers share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ddtree.graph.model import Model
from ddtree.graph.op import Op, Operand
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Cache, Tensor, Weight
from ddtree.templates.kernel import Kernel
from ddtree.templates.render import render
from ddtree.templates.target import Target

Tuning = Mapping[str, Mapping[str, int]]


def kernels_of_op(graph: StepGraph, op: Op, target: Target, tuning: Tuning) -> list[Kernel]:
    """The launches of one op of a step.

    Generated rows use decode kernels and prompt rows prefill kernels. Where a row is cached does not follow from that:
    the commit step runs decode kernels on rows that go to pages.
    """
    tree = graph.tree if op.writes_cache else graph.decode
    return render(op, target, tree=tree, tuning=dict(tuning.get(op.name(), {})))


def distinct(graphs: Iterable[StepGraph]) -> list[tuple[StepGraph, Op]]:
    """One op of each kind and shape, with a step that it belongs to: layers that repeat need no second look."""
    found: dict[tuple[object, ...], tuple[StepGraph, Op]] = {}
    for graph in graphs:
        for op in graph.ops:
            found.setdefault((graph.tree, graph.decode, *_shape(op)), (graph, op))
    return list(found.values())


def at_capacity(op: Op, rows: int) -> Op:
    """The same op in a step of another row capacity."""

    def resized(o: Operand) -> Operand:
        if isinstance(o, Tensor) and o.domain in ("rows", "wanted"):
            return replace(o, shape=(rows, *o.shape[1:]))
        return o

    return op.map_operands(resized)


def with_buckets(ops: Iterable[tuple[StepGraph, Op]], buckets: Iterable[int]) -> list[tuple[StepGraph, Op]]:
    """The ops, those of the verify step once for each row capacity."""
    made, capacities = [], list(buckets)
    for graph, op in ops:
        made += [(graph, at_capacity(op, rows)) for rows in capacities] if graph.name == "verify" else [(graph, op)]
    return made


def _shape(op: Op) -> tuple[object, ...]:
    """Everything of an op that its kernels can depend on: all but names, sources and the YAML place."""
    key: list[object] = [type(op)]
    for name in op.__dataclass_fields__:
        value = getattr(op, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Tensor):
                key.append((name, item.shape, item.dtype, item.domain))
            elif isinstance(item, Weight):
                key.append((name, item.shape, item.dtype, item.group))
            elif isinstance(item, Cache):
                key.append((name, item.row, item.dtype, item.window, item.context))
            elif name != "origin":
                key.append((name, item))
    return tuple(key)


def program(ops: Iterable[tuple[StepGraph, Op]], target: Target, tuning: Tuning) -> dict[str, Kernel]:
    """Every kernel by name; a name stands for one source, at the largest shared memory that any launch asks for."""
    kernels: dict[str, Kernel] = {}
    for graph, op in ops:
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
