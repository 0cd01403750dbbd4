"""The GPU's sink without a GPU: the driver's calls on host memory, its kernel on the emulator."""
# ruff: noqa: N802, N815  (names of the driver)

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddtree.graph.build import build_step, steps_of
from ddtree.graph.model import load
from ddtree.runtime import order
from ddtree.runtime.cuda import sink as module
from ddtree.runtime.cuda.sink import DeviceSink, loading_tiles
from ddtree.runtime.delivery import HostSink
from ddtree.runtime.launches import Place
from ddtree.runtime.load import folders
from ddtree.runtime.packed import destinations, uses_of
from ddtree.runtime.stream import stream_weights
from ddtree.templates.render import render_tile
from ddtree.templates.target import DEFAULT_TARGET, target
from tests.emulator import guarded
from tests.fixtures.pair import DrafterShape, TargetShape, write_pair
from tests.steps.emulated import run_tile


class Memory:
    """What the sink asks of the driver. Copies are late on purpose: they happen when an event or the stream is waited for."""

    CU_MEMHOSTALLOC_PORTABLE = 1
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)

    def __init__(self) -> None:
        self.arrays: dict[int, np.ndarray] = {}
        self.queue: list[Any] = []
        self.recorded: dict[int, int] = {}
        self.done = 0

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:
        array = guarded(np.zeros(nbytes, np.uint8))
        self.arrays[array.ctypes.data] = array
        return 0, array.ctypes.data

    def cuMemHostAlloc(self, nbytes: int, _: int) -> tuple[int, int]:
        return self.cuMemAlloc(nbytes)

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.arrays[address]
        return (0,)

    cuMemFreeHost = cuMemFree

    def cuMemcpyHtoD(self, to: int, source: int, nbytes: int) -> tuple[int]:
        ctypes.memmove(to, source, nbytes)
        return (0,)

    def cuMemcpyHtoDAsync(self, to: int, source: int, nbytes: int, _: Any) -> tuple[int]:
        self.queue.append(lambda: ctypes.memmove(to, source, nbytes))
        return (0,)

    def cuEventCreate(self, _: int) -> tuple[int, int]:
        self.recorded[len(self.recorded)] = 0
        return 0, len(self.recorded) - 1

    def cuEventRecord(self, event: int, _: Any) -> tuple[int]:
        self.recorded[event] = self.done + len(self.queue)
        return (0,)

    def cuEventSynchronize(self, event: int) -> tuple[int]:
        while self.done < self.recorded[event]:
            self.queue.pop(0)()
            self.done += 1
        return (0,)

    def cuEventDestroy(self, _: int) -> tuple[int]:
        return (0,)

    def drain(self, _: str = "") -> None:
        while self.queue:
            self.queue.pop(0)()
            self.done += 1


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory()

    class Launch:
        def __init__(self, function: Any, tile: Any, addresses: list[int]) -> None:
            self.work = lambda: run_tile(tile, render_tile(tile), list(addresses))

        def launch(self, _: Any) -> None:
            made.queue.append(self.work)

    monkeypatch.setattr(module, "cu", made)
    monkeypatch.setattr(module, "Call", Launch)
    monkeypatch.setattr(module, "MOST", 1 << 18)  # several parts for most weights
    return made


def device(memory: Memory) -> Any:
    """A Device as far as the sink knows it."""
    return SimpleNamespace(
        stream=None, target=target(DEFAULT_TARGET), make_current=lambda: None, synchronize=memory.drain,
        alloc=lambda nbytes, _: memory.cuMemAlloc(nbytes)[1],
    )  # fmt: skip


def test_the_gpu_holds_what_the_host_would_pack(tmp_path: Path, memory: Memory) -> None:
    shape = TargetShape(vocab=128, hidden=128, heads=8, expert_width=64, experts=8, top_k=2, layers=2)
    path = write_pair(tmp_path, shape, DrafterShape(heads=8, kv_heads=8, taps=(0,), width=128), seed=3)
    model = load(path)
    graphs = [build_step(model, step) for step in steps_of(model)]
    where = folders(model, None, None)
    host = HostSink()
    stream_weights(model, where, graphs, {0: host})
    functions = {tile.name: SimpleNamespace(tile=tile) for tile in loading_tiles(target(DEFAULT_TARGET))}
    with DeviceSink(device(memory), functions) as sink:  # type: ignore[arg-type]
        stream_weights(model, where, graphs, {0: sink})
    assert sink.addresses.keys() == host.arrays.keys()
    for place, array in host.arrays.items():
        assert memory.arrays[sink.addresses[place]].tobytes() == array.tobytes(), place
    assert len(memory.arrays) == len(destinations(uses_of(graphs)))  # memory of loading alone is gone
    assert order.MOST > module.MOST


def test_long_writes_take_turns_on_two_stages(memory: Memory) -> None:
    functions = {tile.name: SimpleNamespace(tile=tile) for tile in loading_tiles(target(DEFAULT_TARGET))}
    data = np.random.default_rng(0).integers(0, 256, 5 * (1 << 18) + 77, np.uint8)
    place = Place("weight", "w")
    with DeviceSink(device(memory), functions) as sink:  # type: ignore[arg-type]
        sink.allocate([place], data.nbytes + 8)
        sink.write(place, 8, data)
    assert memory.arrays[sink.addresses[place]][8:].tobytes() == data.tobytes()
