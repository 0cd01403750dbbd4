"""How kernels want each weight: who uses it, how large it becomes, and which pieces of it can be packed alone.

A stack is packed expert by expert. A large matrix is packed block of rows by block of rows if its layout allows that, which is
asked of the layout itself: two blocks packed alone must be the bytes of both packed together.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddtree.graph.op import Op, Operand
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import WHOLE, DType, Weight
from ddtree.runtime.launches import Place, packer_of
from ddtree.runtime.weights.int4 import Int4

BLOCK = 64  # rows; every kernel's tile of a weight has fewer


@dataclass(frozen=True)
class Form:
    """What one use of a weight takes in memory.

    unit    bytes of each part for a matrix, or for one of a stack
    block   bytes of each part for every 64 rows of a matrix whose layout goes by rows; None for one that must be packed whole
    """

    unit: Mapping[str, int]
    block: Mapping[str, int] | None


@dataclass(frozen=True)
class Use:
    """A field of an op through which kernels read a weight. Ops of the same kind and field share what is packed."""

    op: Op
    field: str
    weight: Weight

    @property
    def key(self) -> str:
        """What a Place calls it."""
        return self.op.layout(self.field)

    @property
    def packs(self) -> bool:
        """Whether its kernels want another layout than the checkpoint's."""
        return packer_of(self.op) is not None

    def place(self, part: str = "") -> Place:
        """Where kernels look for it."""
        return Place("weight", self.weight.name, self.key, part)

    def pack(self, array: np.ndarray | Int4) -> dict[str, np.ndarray]:
        """One unit in its kernels' layout: a matrix, a stack [1, ...], or some rows of a matrix; flat bytes by part."""
        packer = packer_of(self.op)
        if packer is None:
            return {"": flat(array)}
        op, rows = self.op.map_operands(one_unit), array.shape
        if not self.weight.count and rows != self.weight.shape:  # some rows of it: a smaller weight
            thin = replace(self.weight, full=rows, split=None, shard=WHOLE)
            op = op.map_operands(lambda o: thin if o == self.weight else o)
        return {part: flat(packed) for part, packed in packer(op, self.field, array).items()}

    def form(self) -> Form:
        """Its size in memory."""
        return _form(ByShape(self))


def flat(array: Any) -> np.ndarray:
    """The bytes of a contiguous copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def uses_of(graphs: Iterable[StepGraph]) -> dict[str, list[Use]]:
    """Every weight of the steps by name, with the ways in which its kernels read it, each once."""
    uses: dict[str, list[Use]] = {}
    for op in (op for g in graphs for op in g.ops):
        for field, w in op.operands():
            if isinstance(w, Weight):
                use, known = Use(op, field, w), uses.setdefault(w.name, [])
                if use.key not in {u.key for u in known}:
                    known.append(use)
    return uses


@dataclass(frozen=True)
class Destination:
    """Memory of one weight on every rank. Uses that take the array as it is share it."""

    places: tuple[Place, ...]
    nbytes: int


def destinations(uses: Mapping[str, Sequence[Use]]) -> list[Destination]:
    """All memory that weights take on one rank."""
    made: list[Destination] = []
    for of_weight in uses.values():
        plain = [use for use in of_weight if not use.packs]
        if plain:
            made.append(Destination(tuple(use.place() for use in plain), plain[0].weight.nbytes))
        for use in of_weight:
            if use.packs:
                units = max(1, use.weight.count)
                made += [Destination((use.place(part),), units * n) for part, n in use.form().unit.items()]
    return made


def one_unit(o: Operand) -> Operand:
    """A stack of weights as one of its members; anything else as it is."""
    return replace(o, count=min(1, o.count)) if isinstance(o, Weight) else o


class ByShape:
    """A use as a key of what depends on its layout alone, so that layers that repeat are looked at once."""

    def __init__(self, use: Use) -> None:
        self.use = use
        weights = [(f, o.shape, o.dtype, o.group) for f, o in use.op.operands() if isinstance(o, Weight)]
        self.key = (use.key, use.weight.shape, *weights)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByShape) and self.key == other.key


@functools.cache
def _form(shape: ByShape) -> Form:
    use, w = shape.use, shape.use.weight
    unit = w.shape[1:] if w.count else w.shape
    nbytes = w.nbytes // max(1, w.count)
    if not use.packs:
        return Form({"": nbytes}, {"": BLOCK * nbytes // unit[0]})
    block = _by_rows(use, unit[1]) if not w.count and len(unit) == 2 and w.dtype is DType.BF16 else None
    if block is None:
        return Form({part: packed.nbytes for part, packed in use.pack(_zeros(w)).items()}, None)
    whole, rest = divmod(unit[0], BLOCK)
    last = use.pack(np.zeros((rest, unit[1]), w.dtype.numpy)) if rest else {}
    return Form({part: whole * n + (last[part].nbytes if rest else 0) for part, n in block.items()}, block)


def _by_rows(use: Use, columns: int) -> dict[str, int] | None:
    """Bytes of each part for 64 rows, if 128 rows are two times 64 rows one behind the other."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, (2 * BLOCK, columns), np.uint16).view(DType.BF16.numpy)
    try:
        both, first, second = (use.pack(rows) for rows in (bits, bits[:BLOCK], bits[BLOCK:]))
    except ValueError:  # the op's other operands fix the number of rows
        return None
    if any(both[part].tobytes() != first[part].tobytes() + second[part].tobytes() for part in both):
        return None
    return {part: packed.nbytes for part, packed in first.items()}


def _zeros(w: Weight) -> np.ndarray | Int4:
    shape = replace(w, count=min(1, w.count)).shape
    if w.dtype is not DType.INT4:
        return np.zeros(shape, w.dtype.numpy)
    packed, scale = (*shape[:-1], shape[-1] // 8), (*shape[:-1], shape[-1] // w.group)
    return Int4(np.zeros(packed, np.uint32), np.zeros(scale, DType.BF16.numpy), w.group)


def total_bytes(uses: Mapping[str, Sequence[Use]]) -> int:
    """Bytes of all weights on one rank."""
    return sum(d.nbytes for d in destinations(uses))
