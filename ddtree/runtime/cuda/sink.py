"""A rank's weights in the memory of its GPU, from a checkpoint that streams by (runtime/stream.py)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from ddtree.runtime.cuda.driver import Device, check
from ddtree.runtime.cuda.module import Call, Function
from ddtree.runtime.launches import Place
from ddtree.runtime.order import MOST, Order
from ddtree.templates.kernel import Tile
from ddtree.templates.loading import rearrange_tile
from ddtree.templates.target import Target

HEADER = 256  # bytes in front of what is rearranged: struct Rearrange
BITS = (4, 16)


def loading_tiles(target: Target) -> list[Tile]:
    """The kernels that a sink launches."""
    return [rearrange_tile(target, bits) for bits in BITS]


class _Stage:
    """Pinned host memory, device memory for what a kernel is to rearrange, and an event that says when the host may write."""

    def __init__(self) -> None:
        what = "allocating memory for loading"
        self.host = int(check(cu.cuMemHostAlloc(HEADER + MOST, cu.CU_MEMHOSTALLOC_PORTABLE), what))
        self.view = np.ctypeslib.as_array((ctypes.c_uint8 * (HEADER + MOST)).from_address(self.host))
        self.address = int(check(cu.cuMemAlloc(HEADER + MOST), what))
        self.free = check(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING), what)

    def send(self, address: int, nbytes: int, stream: Any, *, start: int = 0) -> None:
        """Copy to device memory, in stream order."""
        check(cu.cuMemcpyHtoDAsync(address, self.host + start, nbytes, stream), "uploading weights")
        check(cu.cuEventRecord(self.free, stream), "uploading weights")

    def close(self) -> None:
        check(cu.cuMemFree(self.address), "freeing memory of loading")
        check(cu.cuMemFreeHost(self.host), "freeing memory of loading")
        check(cu.cuEventDestroy(self.free), "freeing memory of loading")


class DeviceSink:
    """A Sink. One stage fills while the other is copied; kernels bring what arrives into its order on the GPU.

    addresses  of weights, by place      functions  `loading_tiles`, loaded, by name

    Memory for loading alone is freed at the end of the `with` block; weights live as long as the device.
    """

    rearranges = True

    def __init__(self, device: Device, functions: Mapping[str, Function]) -> None:
        self.device, self.addresses = device, dict[Place, int]()
        self._functions = {
            bits: functions[tile.name] for bits, tile in zip(BITS, loading_tiles(device.target), strict=True)
        }
        self._stages: list[_Stage] = []
        self._tables: dict[int, tuple[int, Order]] = {}
        self._turn = 0

    def allocate(self, places: Sequence[Place], nbytes: int) -> None:
        """See runtime.delivery.Sink."""
        self.device.make_current()
        self.addresses.update(dict.fromkeys(places, self.device.alloc(nbytes, f"weight {places[0].name}")))

    def write(self, place: Place, offset: int, data: np.ndarray) -> None:
        """See runtime.delivery.Sink."""
        for start, part, stage in self._parts(data, MOST):
            stage.view[: part.nbytes] = part
            stage.send(self.addresses[place] + offset + start, part.nbytes, self.device.stream)

    def rearrange(self, place: Place, offset: int, raw: np.ndarray, order: Order) -> None:
        """See runtime.delivery.Sink. A block's bytes in the order are a multiple of 4."""
        table, function = self._table(order), self._functions[order.bits]
        period = order.nbytes // 4
        for start, part, stage in self._parts(raw, MOST // order.source * order.source):
            blocks = part.nbytes // order.source
            packed = struct.pack("3Q", blocks * period, period, order.source)
            stage.view[: len(packed)] = np.frombuffer(packed, np.uint8)
            stage.view[HEADER : HEADER + part.nbytes] = part
            stage.send(stage.address, HEADER + part.nbytes, self.device.stream)
            out = self.addresses[place] + offset + start // order.source * order.nbytes
            arguments = [stage.address, stage.address + HEADER, table, out]
            Call(function, function.tile, arguments).launch(self.device.stream)

    def _parts(self, data: np.ndarray, most: int) -> Iterator[tuple[int, np.ndarray, _Stage]]:
        """Parts of at most `most` bytes, where each starts, and a stage that is free."""
        self.device.make_current()
        while len(self._stages) < 2:
            self._stages.append(_Stage())
        for start in range(0, data.nbytes, most):
            self._turn += 1
            stage = self._stages[self._turn % 2]
            check(cu.cuEventSynchronize(stage.free), "uploading weights")
            yield start, data[start : start + most], stage

    def _table(self, order: Order) -> int:
        """Device address of an order's table."""
        if id(order) not in self._tables:
            self.device.make_current()
            address = int(check(cu.cuMemAlloc(order.table.nbytes), "allocating memory for loading"))
            check(cu.cuMemcpyHtoD(address, order.table.ctypes.data, order.table.nbytes), "uploading a table")
            self._tables[id(order)] = address, order  # the order stays alive, so that its id is nobody else's
        return self._tables[id(order)][0]

    def close(self) -> None:
        """Wait for the last copy and free what only loading needs."""
        self.device.make_current()
        self.device.synchronize("loading weights")
        while self._stages:
            self._stages.pop().close()
        while self._tables:
            check(cu.cuMemFree(self._tables.popitem()[1][0]), "freeing memory of loading")

    def __enter__(self) -> DeviceSink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # after a fault of the GPU these calls would hide it
            self.close()
