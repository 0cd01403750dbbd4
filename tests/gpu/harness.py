"""Run one op's kernels on the GPU, with the memory and the checks of the emulated harness."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from ddtree.graph.op import Op
from ddtree.graph.rows import RowTable
from ddtree.runtime.cache import CompileCache
from ddtree.runtime.compiler import KernelSource, compile_all
from ddtree.runtime.cuda.driver import Device, check
from ddtree.runtime.cuda.group import Links, share_of
from ddtree.runtime.cuda.module import Call, Function, load
from ddtree.templates.kernel import Kernel
from ddtree.templates.render import render
from tests.ops.harness import Results, assert_same_bits
from tests.ops.memory import OpMemory, RowsMemory
from tests.ops.together import ONE_SHOT_FIELD, memories

_MARGIN = 256  # bytes of poison before and after every buffer


@cache
def _function(device: Device, source: str, name: str, kernel: _Key) -> Function:
    (compiled,) = compile_all(
        [KernelSource(name, kernel.op, source, kernel.smem)],
        [device.target.name],
        cache=CompileCache(),
        allow_spills=True,  # odd shapes; those of the models are held to none by tests/cli/test_kernels.py
    )
    return load(device, {name: compiled.cubin}, {name: kernel.kernel.tile})[name]


class _Key:
    """A kernel as a cache key: equal names and sizes mean equal functions."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.op, self.smem = kernel, kernel.op.name(), kernel.tile.smem

    def __hash__(self) -> int:
        return hash((self.kernel.name, self.smem))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (self.kernel.name, self.smem) == (other.kernel.name, other.smem)


class _Mirror:
    """Host arrays and their copies on the GPU, each between two strips of poison."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.address: dict[int, int] = {}
        self.arrays: list[np.ndarray] = []
        self.keep: list[np.ndarray] = []  # arrays are known by their address, which must not be used again

    def add(self, array: np.ndarray) -> int:
        at = array.ctypes.data
        if at not in self.address:
            base = self.device.alloc(array.nbytes + 2 * _MARGIN, "test buffer")
            self.device.fill(base, 0xA5, array.nbytes + 2 * _MARGIN)
            self.address[at] = base + _MARGIN
            self.arrays.append(array)
        self.device.write(self.address[at], array)
        return self.address[at]

    def fetch(self) -> None:
        """Bring every buffer back; fail when a strip of poison was written."""
        for array in self.arrays:
            base, size = self.address[array.ctypes.data], array.nbytes
            around = self.device.read(base - _MARGIN, (size + 2 * _MARGIN,), np.uint8)
            assert (around[:_MARGIN] == 0xA5).all() and (around[_MARGIN + size :] == 0xA5).all(), (
                "a kernel wrote outside"
            )
            if array.flags.writeable:
                array[...] = around[_MARGIN : _MARGIN + size].view(array.dtype).reshape(array.shape)

    def free(self) -> None:
        for at in self.address.values():
            cu.cuMemFree(at - _MARGIN)
            self.device._allocations.remove(at - _MARGIN)


def gpu_runner(device: Device) -> Callable[..., Results]:
    """A function to be called like `harness.emulate`; schedules, delays and modes mean nothing on a GPU."""

    def run(
        op: Op, inputs: dict[str, Any], rows: RowTable, *, tree: bool | None = None, tuning: dict[str, int] | None = None,
        workspaces: Sequence[str] = (), **_: Any,
    ) -> Results:  # fmt: skip
        if op.collective:
            return _together(device, op, inputs, rows)
        kernels = render(op, device.target, tree=rows.tree if tree is None else tree, tuning=tuning)
        memory = OpMemory(op, inputs, rows, tuple(k.tile for k in kernels))
        first = _launch(device, kernels, memory)
        kept = {f"workspace:{name}": memory.workspace(name) for name in workspaces}
        if not memory.workspaces_restored():
            for field, again in _launch(device, kernels, memory).items():
                assert_same_bits(again, first[field], f"{field} of a second launch")
        return first | kept

    return run


def _launch(device: Device, kernels: list[Kernel], memory: OpMemory) -> Results:
    memory.reset()
    mirror = _Mirror(device)
    try:
        rows = _rows(mirror, memory.rows_memory)
        table = mirror.add(rows)
        for kernel in kernels:
            arguments = memory.arguments(kernel.tile)
            addresses = [
                table if arg.kind == "rows" else mirror.add(array)
                for arg, array in zip(kernel.tile.args, arguments, strict=True)
            ]
            function = _function(device, kernel.source, kernel.name, _Key(kernel))
            device.synchronize()
            Call(function, kernel.tile, addresses).launch(device.stream)
            device.synchronize(f"running {kernel.name}")
            mirror.fetch()
        return memory.results()
    finally:
        mirror.free()


def _together(device: Device, op: Any, inputs: dict[str, Any], rows: RowTable) -> Results:
    """What every rank of a group that shares the GPU makes of a collective, in one shot and, by the same group, in two."""
    (kernel,) = render(op, share_of(device.target, op.ranks), tree=rows.tree)
    function = _function(device, kernel.source, kernel.name, _Key(kernel))
    links = Links([device] * op.ranks, [op], one_shot=1 << 30)
    ranks, made = memories(op, inputs, rows, kernel), []
    streams = [check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING), "a stream") for _ in ranks]
    for one_shot in (1 << 30, 0):
        for group in links.addresses:
            device.write(group + ONE_SHOT_FIELD, np.array([one_shot], np.uint32))
        mirrors = [_Mirror(device) for _ in ranks]
        calls = []
        for memory, mirror, group in zip(ranks, mirrors, links.addresses, strict=True):
            memory.reset()
            own = {"rows": mirror.add(_rows(mirror, memory.rows_memory)), "group": group}
            host = memory.arguments(kernel.tile, np.zeros(1))
            pairs = zip(kernel.tile.args, host, strict=True)
            calls.append(Call(function, kernel.tile, [own.get(a.kind) or mirror.add(x) for a, x in pairs]))
        device.synchronize()
        for call, stream in zip(calls, streams, strict=True):
            call.launch(stream, early=False)
        for stream in streams:
            check(cu.cuStreamSynchronize(stream), f"running {kernel.name}")
        links.check(kernel.name)
        for memory, mirror in zip(ranks, mirrors, strict=True):
            mirror.fetch()
            made.append(memory.results())
            mirror.free()
    for other in made[1:]:
        for field, array in other.items():
            assert_same_bits(array, made[0][field], f"{field} of another rank, or of one shot and two")
    return made[0]


def _rows(mirror: _Mirror, rows: RowsMemory) -> np.ndarray:
    """`struct Rows` with the addresses that its arrays have on the GPU."""
    counts = struct.unpack("4i", rows.struct[:16].tobytes())
    packed = struct.pack("4i8P", *counts, *(mirror.add(a) for a in rows.arrays))
    return np.frombuffer(packed, np.uint8).copy()
