"""One step on the GPU, kernel by kernel."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddtree.errors import DeviceError
from ddtree.graph.numerics import round_bf16
from ddtree.graph.rows import RowTable
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import DType, Tensor
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.module import Call, Function
from ddtree.runtime.launches import Launch, Place


def to_bits(array: np.ndarray, dtype: DType) -> np.ndarray:
    """A contiguous array as kernels find it; BF16 values as uint16."""
    if dtype is DType.BF16:
        return (round_bf16(array).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(array, dtype.numpy)


def from_bits(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The inverse of `to_bits`: BF16 becomes float32, exactly."""
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32) if dtype is DType.BF16 else array


class RowsBuffer:
    """A row table in device memory (include/ddtree/rows.cuh), with room for `rows` rows."""

    COLUMNS = ("sequence", "position", "parent", "node", "committed", "pages", "wanted", "source")

    def __init__(
        self, device: Device, rows: int, sequences: int, pages: int, shared: Mapping[str, int] | None = None
    ) -> None:
        self.device, self.pages = device, pages
        sizes = dict.fromkeys(self.COLUMNS, rows) | {"committed": sequences, "pages": sequences * pages}
        known = dict(shared or {})
        self.columns = {
            name: known.get(name) or device.alloc(4 * n, f"row table column {name}") for name, n in sizes.items()
        }
        self.address = device.alloc(80, "row table")
        self._set(0, 0, sequences)

    def _set(self, count: int, wanted: int, sequences: int) -> None:
        packed = struct.pack("4i8P", count, wanted, sequences, self.pages, *(self.columns[c] for c in self.COLUMNS))
        self.device.write(self.address, np.frombuffer(packed, np.uint8))

    def write(self, rows: RowTable) -> None:
        """Copy a host row table to the device."""
        wanted = np.arange(len(rows)) if rows.wanted is None else rows.wanted
        source = rows.source if rows.source is not None else np.zeros(0)
        values = (rows.sequence, rows.position, rows.parent, rows.node, rows.committed, rows.pages, wanted, source)
        for name, array in zip(self.COLUMNS, values, strict=True):
            self.device.write(self.columns[name], np.ascontiguousarray(array, np.int32))
        self._set(len(rows), len(wanted), len(rows.committed))


class CudaStep:
    """A StepExecutor: uploads inputs and rows, launches every kernel, reads outputs.

    shared   device address of every weight and cache by place      functions  loaded kernels by name
    checked  wait after each kernel of a run, so that a fault names its op
    given    device addresses of tensors that other steps write or read, by name
    arena    device address of memory for all other tensors, which steps that run one at a time share; 0: memory of its own
    """

    def __init__(
        self,
        device: Device,
        graph: StepGraph,
        launches: Sequence[Launch],
        functions: Mapping[str, Function],
        shared: Mapping[Place, int],
        rows: RowsBuffer,
        *,
        checked: bool = False,
        given: Mapping[str, int] | None = None,
        arena: int = 0,
    ) -> None:
        self.device, self.graph, self.rows, self.checked = device, graph, rows, checked
        self.arena = arena or device.alloc(graph.arena, f"arena of step {graph.name}")
        self.given = dict(given or {})
        for t in graph.inputs.values():
            if t.name not in self.given:
                self.given[t.name] = device.alloc(t.nbytes, f"input {t.name}")
        self.calls: list[Call] = []
        self.origins = [launch.kernel.op.origin for launch in launches]
        workspaces: dict[Place, int] = {}
        for launch in launches:
            for place, w in launch.workspaces.items():
                if place not in workspaces:
                    workspaces[place] = device.alloc(w.nbytes, f"workspace {w.name} of {launch.kernel.name}")
                    device.fill(workspaces[place], w.fill, w.nbytes)
        for launch in launches:
            addresses = [self._address(p, shared, workspaces) for p in launch.places]
            self.calls.append(Call(functions[launch.kernel.name], launch.kernel.tile, addresses))

    def tensor(self, name: str) -> int:
        """Device address of a tensor of this step."""
        return self.given[name] if name in self.given else self.arena + self.graph.offsets[name]

    def _address(self, place: Place, shared: Mapping[Place, int], workspaces: Mapping[Place, int]) -> int:
        if place.kind == "rows":
            return self.rows.address
        if place.kind == "tensor":
            return self.tensor(place.name)
        return workspaces[place] if place.kind == "workspace" else shared[place]

    def upload(self, inputs: Mapping[str, np.ndarray], rows: RowTable) -> None:
        """Copy inputs and the row table to the device."""
        for name, t in self.graph.inputs.items():
            self.device.write(self.given[name], to_bits(np.asarray(inputs[name]), t.dtype))
        self.rows.write(rows)

    def launch(self, stream: Any = None) -> None:
        """Put every kernel of the step into a stream, the device's own unless another is given."""
        for call in self.calls:
            call.launch(stream or self.device.stream)

    def launch_checked(self) -> None:
        """Launch kernel by kernel and wait after each, so that a fault names its op and YAML line."""
        for call, origin in zip(self.calls, self.origins, strict=True):
            call.launch(self.device.stream)
            try:
                self.device.synchronize()
            except DeviceError as e:
                raise DeviceError(f"step {self.graph.name}, kernel {call.tile.name} ({origin}): {e}") from None

    def run(self, inputs: Mapping[str, np.ndarray], rows: RowTable) -> dict[str, np.ndarray]:
        """Execute the step; arrays as for the NumPy executor."""
        self.upload(inputs, rows)
        if self.checked:
            self.launch_checked()
        else:
            self.launch()
        return {name: self.read(t, rows) for name, t in self.graph.outputs.items()}

    def read(self, t: Tensor, rows: RowTable) -> np.ndarray:
        """The live rows of a tensor."""
        wanted = len(rows) if rows.wanted is None else len(rows.wanted)
        live = {"rows": len(rows), "wanted": wanted, "sequences": len(rows.committed)}.get(t.domain, t.shape[0])
        stored = np.dtype(np.uint16) if t.dtype is DType.BF16 else t.dtype.numpy
        return from_bits(self.device.read(self.tensor(t.name), (live, *t.shape[1:]), stored), t.dtype)
