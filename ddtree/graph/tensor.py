"""What ops read and write: activations, weights, caches, and how tensor parallelism divides them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

import ml_dtypes
import numpy as np


class DType(StrEnum):
    """Element types of the step graph, by the names that YAML uses."""

    BF16 = "bf16"
    FP32 = "fp32"
    FP64 = "fp64"
    INT32 = "int32"
    INT64 = "int64"
    INT4 = "int4"

    @property
    def bits(self) -> int:
        """Bits of one element in memory."""
        return {"bf16": 16, "fp32": 32, "fp64": 64, "int32": 32, "int64": 64, "int4": 4}[self.value]

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype that stores it exactly; INT4 has none."""
        return np.dtype(
            {"bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64, "int32": np.int32, "int64": np.int64}[
                self.value
            ]
        )


@dataclass(frozen=True)
class Shard:
    """One rank of a tensor-parallel group. `rank` is in 0..size-1; size 1 means undivided."""

    size: int = 1
    rank: int = 0

    def divide(self, shape: tuple[int, ...], split: int | None) -> tuple[int, ...]:
        """The rank's part of `shape`, whose axis `split` is divided evenly (None: not divided)."""
        if split is None or self.size == 1:
            return shape
        return tuple(n // self.size if axis == split else n for axis, n in enumerate(shape))

    def slice(self, length: int) -> slice:
        """The rank's contiguous part of an axis of `length` elements."""
        part = length // self.size
        return slice(self.rank * part, (self.rank + 1) * part)


WHOLE = Shard()


@dataclass(frozen=True)
class Tensor:
    """An activation. shape[0] is the row capacity of its step; a run may use fewer rows.

    split   axis that tensor parallelism divides (None: every rank holds the whole)
    domain  what the first axis counts: `rows` of the step, the `wanted` ones among them, `sequences`, or `source` rows
            of an earlier step. Empty in a shape rule's answer: the builder then takes the domain of the first input
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType = DType.BF16
    split: int | None = None
    domain: str = ""

    @property
    def width(self) -> int:
        """Elements of one row."""
        return prod(self.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes at full row capacity."""
        return prod(self.shape) * self.dtype.bits // 8

    def row_bytes(self, rows: int) -> int:
        """Bytes of the first `rows` rows."""
        return min(rows, self.shape[0]) * self.width * self.dtype.bits // 8


@dataclass(frozen=True)
class Weight:
    """A parameter of the model and where it stands in the checkpoint.

    name    unique in the graph, the source with a prefix for the drafter
    source  checkpoint tensor name without the file's prefix; contains `{expert}` where `count` tensors are stacked
    full    shape of one checkpoint tensor, undivided, in elements (for INT4: of the unpacked matrix)
    dtype   BF16 or FP32 as stored, or INT4 (three tensors: source + `_packed`, `_scale`, `_shape`)
    split   axis of `full` that tensor parallelism divides, None for a replicated weight
    count   number of stacked tensors (experts); 0 for a single tensor
    group   INT4 only: weights along the input axis that share one scale
    shard   the rank whose part this is
    """

    name: str
    source: str
    full: tuple[int, ...]
    dtype: DType = DType.BF16
    split: int | None = None
    count: int = 0
    group: int = 32
    shard: Shard = WHOLE

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rank's part, stacked tensors first."""
        part = self.shard.divide(self.full, self.split)
        return (self.count, *part) if self.count else part

    @property
    def nbytes(self) -> int:
        """Bytes of the rank's part, INT4 scales (bf16) included."""
        elements = prod(self.shape)
        scales = elements // self.group * 2 if self.dtype is DType.INT4 else 0
        return elements * self.dtype.bits // 8 + scales


@dataclass(frozen=True)
class Cache:
    """Persistent rows of one layer: one row for each committed position, in pages of `page` positions.

    name    unique in the graph, for example `layers.3.latent`
    row     shape of one position's row
    context most positions of one sequence
    window  positions that stay readable before the newest one; None keeps all of them. A windowed cache is no paged
            memory but a ring of its own per sequence: position p lives at p % (pages() * page)
    split   axis of `row` that tensor parallelism divides
    """

    name: str
    row: tuple[int, ...]
    dtype: DType = DType.BF16
    page: int = 64
    context: int = 4096
    window: int | None = None
    split: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one position."""
        return prod(self.row) * self.dtype.bits // 8

    def pages(self, context: int | None = None) -> int:
        """Pages that one sequence of `context` positions (default: the most) needs."""
        most = self.context if context is None else context
        kept = most if self.window is None else self.window
        return -(-kept // self.page)
