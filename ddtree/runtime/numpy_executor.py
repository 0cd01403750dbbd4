"""Runs a step graph with the ops' NumPy references: the meaning of the graph, and `--device cpu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddtree.graph.numerics import Numerics, Precision
from ddtree.graph.op import Op, Run
from ddtree.graph.rows import RowTable
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Cache, DType, Tensor, Weight
from ddtree.runtime.kv import NumpyCache
from ddtree.runtime.weights import Int4

Arrays = dict[str, np.ndarray]


@dataclass
class NumpyRank:
    """What one rank holds: weights as float32 arrays (made on first use) and caches, by name."""

    stored: Mapping[str, np.ndarray | Int4]
    caches: dict[str, NumpyCache]
    ready: dict[str, np.ndarray] = field(default_factory=dict)

    def weight(self, weight: Weight) -> np.ndarray:
        """The weight as float32; INT4 dequantised as bf16(q * scale)."""
        if weight.name not in self.ready:
            stored = self.stored[weight.name]
            self.ready[weight.name] = (
                stored.dequantise(np.float32) if isinstance(stored, Int4) else np.asarray(stored, np.float32)
            )
        return self.ready[weight.name]


class NumpyExecutor:
    """Runs the graphs of all ranks of one step, op by op and rank by rank, so that collectives see every rank's part."""

    def __init__(
        self, graphs: Sequence[StepGraph], ranks: Sequence[NumpyRank], precision: Precision = Precision.FP32
    ) -> None:
        self.graphs, self.ranks, self.num = list(graphs), list(ranks), Numerics(precision)

    def run(self, inputs: Mapping[str, np.ndarray], rows: RowTable) -> Arrays:
        """Execute the step. Inputs by name, equal on all ranks; returns rank 0's outputs by name."""
        run = Run(self.num, rows)
        values: list[Arrays] = [{t.name: _typed(inputs[name], t) for name, t in g.inputs.items()} for g in self.graphs]
        for ops in zip(*(g.ops for g in self.graphs), strict=True):
            if ops[0].collective:
                parts = [mine[op.x.name] for op, mine in zip(ops, values, strict=True)]
                for op, rank, mine in zip(ops, self.ranks, values, strict=True):
                    _store(op, op.reference(run, **self._arrays(op, rank, mine) | {"x": parts}), mine)
                continue
            for op, rank, mine in zip(ops, self.ranks, values, strict=True):
                _store(op, op.reference(run, **self._arrays(op, rank, mine)), mine)
        return {name: values[0][t.name] for name, t in self.graphs[0].outputs.items()}

    @staticmethod
    def _arrays(op: Op, rank: NumpyRank, values: Arrays) -> dict[str, Any]:
        """The reference's arguments: tensors as arrays, weights as float32, caches as themselves."""

        def array(operand: Any) -> Any:
            if isinstance(operand, Tensor):
                return values[operand.name]
            return rank.weight(operand) if isinstance(operand, Weight) else rank.caches[operand.name]

        arrays: dict[str, Any] = {}
        for name, operand in op.operands():
            if name in op.outputs:
                continue
            if isinstance(getattr(op, name), tuple):
                arrays.setdefault(name, []).append(array(operand))
            else:
                arrays[name] = array(operand)
        return arrays


def _typed(array: np.ndarray, tensor: Tensor) -> np.ndarray:
    dtype = np.dtype(np.float32) if tensor.dtype is DType.BF16 else tensor.dtype.numpy
    return np.asarray(array, dtype)


def _store(op: Op, result: Any, values: Arrays) -> None:
    results = result if isinstance(result, tuple) else (result,)
    for tensor, array in zip(op.writes(), results, strict=True):
        values[tensor.name] = array


def make_caches(caches: Mapping[str, Cache], pages: int, sequences: int) -> dict[str, NumpyCache]:
    """Empty arrays for every cache."""
    return {name: NumpyCache(cache, pages, sequences) for name, cache in caches.items()}
