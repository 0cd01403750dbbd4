"""Random weights in the layout of their kernels, without a checkpoint: what is fixed and what is random in each word.

A weight is packed twice in small, once with every random bit clear and once with every one set; that gives a template for each
word. A GPU then fills any number of units from a counter-based generator (include/ddtree/random_fill.cuh), so that weights that
no host memory could hold are made in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2, prod
from typing import Any

import numpy as np

from ddtree.graph.op import Op
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import DType, Weight
from ddtree.runtime.launches import Place, packer_of
from ddtree.runtime.packed import one_unit
from ddtree.runtime.weights.int4 import Int4


@dataclass(frozen=True)
class RandomArray:
    """One array of a weight: `units` copies of a template, word i being base[i] | (random & mask[i]).

    base, mask  uint32, of one unit
    """

    place: Place
    units: int
    base: np.ndarray
    mask: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.units * self.base.nbytes


def random_arrays(graphs: Sequence[StepGraph]) -> Iterator[RandomArray]:
    """Every weight array that the kernels of the steps want, once. Templates are shared by weights of equal shape."""
    done: set[tuple[str, str]] = set()
    templates: dict[tuple[Any, ...], dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for op in (op for g in graphs for op in g.ops):
        for field, w in op.operands():
            key = op.layout(field)
            if not isinstance(w, Weight) or (w.name, key) in done:
                continue
            done.add((w.name, key))
            shape = (key, w.shape, w.dtype, w.group)
            if shape not in templates:
                templates[shape] = _templates(op, field, w)
            for part, (base, mask) in templates[shape].items():
                yield RandomArray(Place("weight", w.name, key, part), _units(op, w), base, mask)


def _units(op: Op, w: Weight) -> int:
    return max(1, w.count) if packer_of(op) else prod(w.shape[:-1])


def _templates(op: Op, field: str, w: Weight) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Base and mask of each part of one unit of the weight: one expert of a stack, one row of what is not packed."""
    packer, small = packer_of(op), op.map_operands(one_unit)
    arrays = [_filled(op, w, bit) for bit in (0, 1)]
    packed = [packer(small, field, a) if packer else {"": a} for a in arrays]
    clear, full = ({part: np.ascontiguousarray(a).reshape(-1).view(np.uint32) for part, a in p.items()} for p in packed)
    return {part: (clear[part], clear[part] ^ full[part]) for part in clear}


def _filled(op: Op, w: Weight, bit: int) -> np.ndarray | Int4:
    """One unit of the weight with all random bits clear or set: signs and mantissas of floats, codes and mantissas of the
    scales of INT4. Magnitudes are 1 to 2 times a power of two near columns^-1/2, or 1 for a norm's weight."""
    shape = replace(w, count=min(1, w.count)).shape if packer_of(op) else w.shape[-1:]
    gain = len(w.full) == 1  # a norm's weight, or a bias
    exponent = 127 if gain else 127 + round(log2(w.shape[-1] ** -0.5))
    if w.dtype is DType.INT4:
        packed = np.full((*shape[:-1], shape[-1] // 8), 0xFFFFFFFF * bit, np.uint32)
        scale = np.full((*shape[:-1], shape[-1] // w.group), (exponent - 3) << 7 | 0x7F * bit, np.uint16)
        return Int4(packed, scale.view(DType.BF16.numpy), w.group)
    if w.dtype is DType.FP32:  # a router's bias: small beside scores between 0 and 1
        return np.full(shape, (exponent - 7) << 23 | 0x7FFFFF * bit, np.uint32).view(np.float32)
    return np.full(shape, exponent << 7 | (0x7F if gain else 0x807F) * bit, np.uint16).view(w.dtype.numpy)
