"""The memory of one op's kernels in a test: every argument in guarded memory, poisoned where nothing may be read."""

from __future__ import annotations

import importlib
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.numerics import round_bf16
from ddtree.graph.op import Op
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import Cache, DType, Tensor, Weight
from ddtree.runtime.kv import NumpyCache
from ddtree.runtime.weights.int4 import Int4
from ddtree.templates.kernel import Arg, Tile
from tests.emulator import guarded
from tests.ops.operands import live

_POISON_INT = 0x5A  # every byte of integer memory that holds nothing; not -1, which kernels write on purpose


def to_device(x: np.ndarray, dtype: DType) -> np.ndarray:
    """A contiguous array as a kernel finds it in memory; BF16 as uint16."""
    if dtype is DType.BF16:
        return (round_bf16(np.asarray(x, np.float32)).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(x, dtype.numpy)


def from_device(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The inverse of `to_device`: BF16 becomes float32, exactly."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32) if dtype is DType.BF16 else x.copy()


def poison(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Device memory that holds nothing: NaN, or a conspicuous integer."""
    stored = np.dtype(np.uint16) if dtype is DType.BF16 else dtype.numpy
    byte = _POISON_INT if dtype in (DType.INT32, DType.INT64) else 0xFF
    return np.full(int(np.prod(shape)) * stored.itemsize, byte, np.uint8).view(stored).reshape(shape)


@dataclass
class Buffer:
    """One allocation. `start` is what it holds before a launch, `array` the guarded memory itself."""

    array: np.ndarray
    start: np.ndarray
    dtype: DType

    @classmethod
    def holding(cls, start: np.ndarray, dtype: DType) -> Buffer:
        """A new allocation of that content."""
        return cls(guarded(start), start, dtype)

    def reset(self) -> None:
        """Back to the content before the launch."""
        self.array[...] = self.start

    def require_unchanged(self, first_row: int, what: str) -> None:
        """Fail unless rows `first_row`.. hold what they held before the launch."""
        assert self.array[first_row:].tobytes() == self.start[first_row:].tobytes(), what


class RowsMemory:
    """A row table as `struct Rows` (rows.cuh) and its arrays."""

    def __init__(self, rows: RowTable) -> None:
        wanted = np.arange(len(rows)) if rows.wanted is None else rows.wanted
        source = np.full(len(rows), -1) if rows.source is None else rows.source
        arrays = (rows.sequence, rows.position, rows.parent, rows.node, rows.committed, rows.pages, wanted, source)
        self.arrays = [guarded(np.ascontiguousarray(a, np.int32)) for a in arrays]
        counts = (len(rows), len(wanted), len(rows.committed), rows.pages.shape[1])
        packed = struct.pack("4i8P", *counts, *(a.ctypes.data for a in self.arrays))
        self.struct = guarded(np.frombuffer(packed, np.uint8))


class OpMemory:
    """Everything that the kernels of one op read and write. `inputs` as for `harness.emulate`."""

    def __init__(self, op: Op, inputs: dict[str, Any], rows: RowTable, tiles: tuple[Tile, ...]) -> None:
        self.op, self.rows = op, rows
        self.rows_memory = RowsMemory(rows)
        self.caches: dict[str, NumpyCache] = {}
        self.buffers: dict[Arg, Buffer] = {}
        self.packed: dict[tuple[str, int], dict[str, np.ndarray]] = {}
        for workspace in (w for tile in tiles for w in tile.workspace):
            place = Arg("workspace", workspace.name)
            held = self.buffers.get(place)
            assert held is None or len(held.start) == workspace.nbytes, f"two sizes of workspace {workspace.name}"
            self.buffers[place] = Buffer.holding(np.full(workspace.nbytes, workspace.fill, np.uint8), DType.INT32)
        for arg in (a for tile in tiles for a in tile.args):
            if arg.kind not in ("rows", "group") and arg not in self.buffers:
                self.buffers[arg] = self._allocate(arg, inputs)

    def arguments(self, tile: Tile, group: np.ndarray | None = None) -> list[np.ndarray]:
        """The launch arguments of a tile, in order; `group`: what a collective gets as the rank's view of its group."""
        own = {"rows": self.rows_memory.struct} | ({} if group is None else {"group": group})
        return [own[a.kind] if a.kind in own else self.buffers[a].array for a in tile.args]

    def reset(self) -> None:
        """Everything but workspaces as before the first launch: outputs poisoned, caches as given."""
        for arg, buffer in self.buffers.items():
            if arg.kind != "workspace":
                buffer.reset()

    def workspaces_restored(self) -> bool:
        """Whether every workspace holds its fill byte again."""
        return all(bool((b.array == b.start).all()) for arg, b in self.buffers.items() if arg.kind == "workspace")

    def workspace(self, name: str) -> np.ndarray:
        """A copy of what a workspace holds, as float32 whatever it is."""
        return self.buffers[Arg("workspace", name)].array.view(np.float32).copy()

    def results(self) -> dict[str, Any]:
        """Live rows of the outputs by field, and every cache that a kernel had; fails if anything else was written."""
        made: dict[str, Any] = {}
        for arg, buffer in self.buffers.items():
            if arg.kind == "weight":
                buffer.require_unchanged(0, f"weight {arg.of} was written")
            elif arg.kind == "tensor" and arg.of in self.op.outputs:
                rows = live(self._operand(arg), self.rows)
                buffer.require_unchanged(rows, f"{arg.of} was written past its {rows} live rows")
                made[self._field(arg)] = from_device(buffer.array[:rows], buffer.dtype)
            elif arg.kind == "tensor":
                buffer.require_unchanged(0, f"input {arg.of} was written")
            elif arg.kind in ("pages", "scratch"):
                c = made.setdefault(self._field(arg), copy_cache(self.caches[self._field(arg)]))
                setattr(c, "rows" if arg.kind == "pages" else "scratch", from_device(buffer.array, buffer.dtype))
        return made

    def _operand(self, arg: Arg) -> Any:
        value = getattr(self.op, arg.of)
        return value[arg.index] if isinstance(value, tuple) else value

    def _field(self, arg: Arg) -> str:
        """An operand's field; a member of a tuple has its index behind it."""
        return f"{arg.of}{arg.index}" if isinstance(getattr(self.op, arg.of), tuple) else arg.of

    def _allocate(self, arg: Arg, inputs: dict[str, Any]) -> Buffer:
        o = self._operand(arg)
        if arg.kind == "tensor" and arg.of in self.op.outputs:
            return Buffer.holding(poison(o.shape, o.dtype), o.dtype)
        content = inputs[arg.of][arg.index] if isinstance(getattr(self.op, arg.of), tuple) else inputs[arg.of]
        if isinstance(o, Weight):
            return self._weight(arg, o, content)
        if isinstance(o, Cache):
            self.caches[self._field(arg)] = content
            return Buffer.holding(to_device(content.rows if arg.kind == "pages" else content.scratch, o.dtype), o.dtype)
        return Buffer.holding(_padded(o, content, live(o, self.rows)), o.dtype)

    def _weight(self, arg: Arg, o: Weight, content: Any) -> Buffer:
        place = (arg.of, arg.index)
        if place not in self.packed:
            module = importlib.import_module(f"ddtree.templates.tiles.{self.op.name()}")
            assert content.shape == o.shape, f"{arg.of} is {content.shape}, the op says {o.shape}"
            if not isinstance(content, Int4):
                content = (round_bf16(content) if o.dtype is DType.BF16 else content).astype(o.dtype.numpy)
            self.packed[place] = module.pack(self.op, arg.of, content) if hasattr(module, "pack") else {"": content}
        stored = self.packed[place][arg.part]
        bits = stored.view(np.uint16) if stored.dtype == DType.BF16.numpy else stored
        return Buffer.holding(np.ascontiguousarray(bits), o.dtype)


def copy_cache(c: NumpyCache) -> NumpyCache:
    """An independent copy of a cache and its contents."""
    made = NumpyCache(c.cache, 0 if c.ring else len(c.rows), len(c.scratch))
    made.rows, made.scratch = c.rows.copy(), c.scratch.copy()
    return made


def _padded(t: Tensor, content: np.ndarray, rows: int) -> np.ndarray:
    """An input at full capacity; what follows its live rows is poison."""
    assert content.shape == (rows, *t.shape[1:]), f"{t.name} is {content.shape}, {rows} rows of {t.shape[1:]} are live"
    full = poison(t.shape, t.dtype)
    full[:rows] = to_device(content, t.dtype)
    return full
