"""The kernels between the steps of a round on the emulator, with the runtime's own state in memory of the CPU."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from ddtree.graph.build import Limits
from ddtree.runtime.cuda.budget import BudgetMemory
from ddtree.runtime.cuda.round import ARGUMENTS
from ddtree.runtime.cuda.round_state import RoundState
from ddtree.templates.budget import budget_tiles
from ddtree.templates.render import render_tile
from ddtree.templates.round import round_tiles
from tests.emulator import SCHEDULES, Schedule, guarded
from tests.ops.harness import Mutation
from tests.ops.harness import _module as module_of

CONDITIONS = ("more", "choice", "on_take_in", "on_draft", "on_commit")
ROW = 16  # bytes of a row of features
COLUMNS = ("sequence", "position", "parent", "node", "committed", "pages", "wanted", "source")


class HostDevice:
    """What RoundState and CudaDecoder want of a Device, on guarded memory. `work` does what a GPU would do meanwhile; it
    returns whether nothing is left to do."""

    def __init__(self, work: Callable[[], bool] = lambda: True) -> None:
        self.work = work
        self.arrays: dict[int, np.ndarray] = {}

    def alloc(self, nbytes: int, what: str) -> int:
        array = guarded(np.full(-(-nbytes // 8) * 8, 0xA5, np.uint8))
        self.arrays[array.ctypes.data] = array
        return array.ctypes.data

    def pinned(self, nbytes: int) -> tuple[np.ndarray, int]:
        address = self.alloc(nbytes, "")
        self.arrays[address][:] = 0
        return self.arrays[address][:nbytes], address

    def write(self, address: int, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array)
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def idle(self, what: str = "") -> bool:
        return self.work()


def ints(address: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    """Memory at an address as an array."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype).reshape(shape)


class Table:
    """An empty row table; kernels fill it. `committed` and `pages` are addresses."""

    def __init__(self, sequences: int, committed: int, pages: int = 0, columns: int = 0, rows: int = 64) -> None:
        known = {"committed": committed, "pages": pages}
        self.arrays = {c: guarded(np.full(rows, -7, np.int32)) for c in COLUMNS if c not in known}
        places = [known[c] if c in known else self.arrays[c].ctypes.data for c in COLUMNS]
        self.struct = guarded(np.frombuffer(struct.pack("4i8P", 0, 0, sequences, columns, *places), np.uint8))

    def counts(self) -> tuple[int, int]:
        count, wanted = struct.unpack("2i", self.struct[:8].tobytes())
        return count, wanted


class Between:
    """The kernels between the steps, on a RoundState: `run(name)` launches one. `places` binds its arguments.

    mode, schedule  how the emulator runs (tests/emulator)      mutation  header, text and other text: a planted fault
    """

    def __init__(
        self,
        limits: Limits,
        mask_id: int,
        device: HostDevice | None = None,
        *,
        mode: Literal["fast", "check"] = "fast",
        schedule: Schedule = SCHEDULES[0],
        mutation: Mutation | None = None,
        forced: bool = False,
        row_bytes: int = ROW,
    ) -> None:
        self.limits, self.device = limits, device or HostDevice()
        self.mode, self.schedule, self.mutation = mode, schedule, mutation
        self.tiles = round_tiles(limits, mask_id, forced=forced) | budget_tiles(limits, row_bytes)
        self.state = RoundState(self.device, limits)  # type: ignore[arg-type]
        self.sizes = BudgetMemory(self.device, limits) if limits.auto else None  # type: ignore[arg-type]
        self.conditions = {name: guarded(np.full(1, 77, np.uint32)) for name in CONDITIONS}
        self.more, self.choice = self.conditions["more"], self.conditions["choice"]
        self.places: dict[str, Any] = {
            "round": self.state.address,
            "ring": self.state.records_address,
            "control": self.state.control,
            "count": self.state.count,
            "active": self.state.address,
            "slots": self.state.arrays["slots"],
            **{name: word.ctypes.data for name, word in self.conditions.items()},
        }
        if self.sizes:
            self.places |= {"budget_state": self.sizes.state, "costs": self.sizes.table}

    def array(self, name: str) -> np.ndarray:
        """An array of the state, by slot."""
        return ints(self.state.arrays[name], self.limits.sequences)

    def run(self, name: str, places: Mapping[str, Any] | None = None) -> None:
        bound, tile = {**self.places, **(places or {})}, self.tiles[name]
        module = module_of(render_tile(tile), tile.name, self.mode, self.mutation)
        args = [bound.get(a, 0) for a in ARGUMENTS[name]]
        module.launch(tile.name, tile.grid, tile.block, args, tile.smem, self.schedule)
