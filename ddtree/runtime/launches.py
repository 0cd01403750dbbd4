"""From a step graph to its launches: which kernel runs when, on which memory. Knows no device.

A Place names memory; an executor decides where it is. Kernels of one step run in order, one at a time, so ops that launch
the same kernels share their workspaces.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.op import Op
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Cache, Tensor, Weight
from ddtree.templates.kernel import Arg, Kernel, Workspace
from ddtree.templates.program import Tuning, kernels_of_op
from ddtree.templates.target import Target


@dataclass(frozen=True)
class Place:
    """One piece of memory.

    kind  tensor: an activation of the step   weight: a parameter as the op's kernels want it (`part` of the op kind `op`)
          pages, scratch: a cache's rows      rows: the step's row table        workspace: memory that the kernels
          of an op pass on among themselves, `op` being their names             group: the rank's view of its group
    """

    kind: str
    name: str = ""
    op: str = ""
    part: str = ""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: memory of each argument, and the workspaces that the kernel declares."""

    kernel: Kernel
    places: tuple[Place, ...]
    workspaces: Mapping[Place, Workspace]


def _place(arg: Arg, op: Op, kernels: str) -> Place:
    if arg.kind in ("rows", "group"):
        return Place(arg.kind)
    if arg.kind == "workspace":
        return Place("workspace", arg.of, kernels)
    value: Any = getattr(op, arg.of)
    operand = value[arg.index] if isinstance(value, tuple) else value
    assert isinstance(operand, Tensor | Weight | Cache)
    if isinstance(operand, Weight):
        return Place("weight", operand.name, op.layout(arg.of), arg.part)
    return Place(arg.kind, operand.name)


def launches(graph: StepGraph, target: Target, tuning: Tuning) -> list[Launch]:
    """The launches of a step in order."""
    made = []
    for op in graph.ops:
        kernels = kernels_of_op(graph, op, target, tuning)
        names = "+".join(k.name for k in kernels)
        for kernel in kernels:
            spaces = {Place("workspace", w.name, names): w for w in kernel.tile.workspace}
            made.append(Launch(kernel, tuple(_place(arg, op, names) for arg in kernel.tile.args), spaces))
    return made


def packer_of(op: Op) -> Any:
    """The `pack` of the op's tiles, or None for an op whose kernels take weights as the checkpoint has them."""
    return getattr(importlib.import_module(f"ddtree.templates.tiles.{op.name()}"), "pack", None)


def pack_weights(graphs: Sequence[StepGraph], stored: Mapping[str, Any]) -> dict[Place, np.ndarray]:
    """Every weight array in the layout that its ops' kernels want, by place. BF16 arrays stay ml_dtypes.bfloat16."""
    packed: dict[Place, np.ndarray] = {}
    done: set[tuple[str, str]] = set()
    for op in (op for g in graphs for op in g.ops):
        packer = packer_of(op)
        for field, operand in op.operands():
            key = op.layout(field)
            if not isinstance(operand, Weight) or (operand.name, key) in done:
                continue
            done.add((operand.name, key))
            array = stored[operand.name]
            parts = packer(op, field, array) if packer else {"": array}
            packed.update({Place("weight", operand.name, key, part): values for part, values in parts.items()})
    return packed
