"""Packing as a table: which element of a matrix each element of its kernels' layout is.

Packing moves elements and adds constants where it pads, nothing else. So the table is found by packing numbers that count, a
few bits at a time, and proven on random data. A GPU then packs what it is sent as it lies in the file, by one kernel for every
layout (include/ddtree/rearrange.cuh).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ddtree.graph.tensor import DType
from ddtree.runtime.packed import BLOCK, ByShape, Use, flat
from ddtree.runtime.weights.int4 import WORD, Int4

CONSTANT = 0xFFFF0000  # entries from here on are values
MOST = 32 << 20  # bytes of a matrix that has a table
Packer = Callable[[np.ndarray], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Order:
    """One part of a layout.

    bits    of an element: 4 (INT4 codes, and scales as four of them) or 16
    table   uint32 [elements of a block in the layout]: index of the element in the block's own bytes, or CONSTANT + value
    source  bytes of a block: INT4 codes and then scales, or a matrix, or 64 rows of one whose layout goes by rows
    """

    bits: int
    table: np.ndarray
    source: int

    @property
    def nbytes(self) -> int:
        """Bytes of a block in the layout."""
        return len(self.table) * self.bits // 8

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """The layout of whole blocks of bytes: what the kernel does."""
        blocks = _elements(raw, self.bits).reshape(-1, self.source * 8 // self.bits)
        fixed = self.table >= CONSTANT
        made = blocks[:, np.where(fixed, 0, self.table)]
        made[:, fixed] = (self.table[fixed] - CONSTANT).astype(made.dtype)
        return _bytes(made.reshape(-1), self.bits)


def raw_bytes(array: np.ndarray | Int4) -> np.ndarray:
    """What an Order takes: a matrix, or some rows of it, as it lies in the file."""
    if isinstance(array, Int4):
        return np.concatenate([flat(array.packed), flat(array.scale)])
    return flat(array)


def orders(use: Use) -> Mapping[str, Order] | None:
    """The tables of a use's layout by part, None for one that is too large or more than a rearrangement."""
    return _orders(ByShape(use))


@functools.cache
def _orders(shape: ByShape) -> Mapping[str, Order] | None:
    use, w = shape.use, replace(shape.use.weight, count=min(1, shape.use.weight.count))
    int4, block = w.dtype is DType.INT4, use.form().block
    rows = (BLOCK, *w.shape[1:]) if block and use.packs else w.shape
    nbytes = w.nbytes * rows[0] // w.shape[0]
    if nbytes > MOST or not use.packs:
        return None

    def packer(raw: np.ndarray) -> Mapping[str, np.ndarray]:
        if not int4:
            return use.pack(raw.view(w.dtype.numpy).reshape(rows))
        codes = nbytes * w.group * w.dtype.bits // (w.group * w.dtype.bits + 16)
        packed = raw[:codes].view(WORD).reshape(*rows[:-1], -1)
        return use.pack(Int4(packed, raw[codes:].view(DType.BF16.numpy).reshape(*rows[:-1], -1), w.group))

    return learn(packer, nbytes, 4 if int4 else 16)


def learn(packer: Packer, nbytes: int, bits: int) -> Mapping[str, Order] | None:
    """The tables of a packer of `nbytes` bytes, None if it does not only move elements of `bits` bits."""
    index = np.arange(nbytes * 8 // bits, dtype=np.uint32)
    most = (1 << bits) - 1
    clear, full = (packer(np.full(nbytes, byte, np.uint8)) for byte in (0, 0xFF))
    tables = {part: np.zeros(packed.nbytes * 8 // bits, np.uint32) for part, packed in clear.items()}
    for shift in range(0, int(index[-1]).bit_length(), bits):
        for part, packed in packer(_bytes((index >> np.uint32(shift)) & np.uint32(most), bits)).items():
            tables[part] |= _elements(packed, bits).astype(np.uint32) << np.uint32(shift)
    for part, table in tables.items():
        low, high = _elements(clear[part], bits), _elements(full[part], bits)
        fixed = low == high
        table[fixed] = CONSTANT + low[fixed].astype(np.uint32)
    made = {part: Order(bits, table, nbytes) for part, table in tables.items()}
    proof = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    if any(int(t[t < CONSTANT].max(initial=0)) >= len(index) for t in tables.values()):
        return None
    return made if all((made[part].apply(proof) == packed).all() for part, packed in packer(proof).items()) else None


def _elements(data: np.ndarray, bits: int) -> np.ndarray:
    """Bytes as elements, the low half of a byte first."""
    if bits == 16:
        return data.view(np.uint16)
    return np.stack([data & 15, data >> 4], axis=-1).reshape(-1)


def _bytes(elements: np.ndarray, bits: int) -> np.ndarray:
    if bits == 16:
        return elements.astype(np.uint16).view(np.uint8)
    low, high = elements[0::2], elements[1::2]
    return (low | high << 4).astype(np.uint8)
