"""Driver API calls with errors as DeviceError, and one GPU as an object."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from ddtree.errors import DeviceError, UsageError
from ddtree.templates.target import TARGETS, Target

STAGE_BYTES = 16 << 20  # of each of the two pinned stages of an upload
_STICKY = {700, 716, 719}  # after these the process cannot use CUDA any more


def check(result: tuple[Any, ...], what: str) -> Any:
    """Unpack `(status, value...)` or raise DeviceError; `what` says what was being done."""
    status = result[0]
    if int(status):
        name, text = cu.cuGetErrorName(status)[1], cu.cuGetErrorString(status)[1]
        end = "; the GPU context is lost, start again" if int(status) in _STICKY else ""
        raise DeviceError(f"{what}: {name.decode()} ({int(status)}): {text.decode()}{end}")
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]


class Device:
    """One GPU: its primary context, one stream, and the allocations that live as long as it does.

    index  as the driver counts      arch  compute capability (major, minor)      sms  multiprocessors
    """

    def __init__(self, index: int = 0) -> None:
        try:
            check(cu.cuInit(0), "starting CUDA")
            count = check(cu.cuDeviceGetCount(), "counting GPUs")
        except RuntimeError as e:  # cuda-python found no driver library
            raise DeviceError(f"no NVIDIA driver ({str(e).splitlines()[0]}); use --device cpu") from None
        if not 0 <= index < count:
            raise UsageError(f"--device cuda:{index}: this machine has {count} GPUs")
        self.index = index
        self.handle = check(cu.cuDeviceGet(index), f"opening GPU {index}")
        self.context = check(cu.cuDevicePrimaryCtxRetain(self.handle), f"opening GPU {index}")
        self.make_current()
        self.name = check(cu.cuDeviceGetName(128, self.handle), "reading the GPU's name").decode().rstrip("\0 ")
        self.arch = (self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR"))
        self.sms = self._attribute("MULTIPROCESSOR_COUNT")
        self.stream = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING), "creating a stream")
        self._allocations: list[int] = []
        self._pinned: list[int] = []
        self._staging: list[tuple[np.ndarray, Any]] = []

    def _attribute(self, name: str) -> int:
        key = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(cu.cuDeviceGetAttribute(key, self.handle), f"reading {name}"))

    @property
    def target(self) -> Target:
        """The code-generation target of this GPU. Raises DeviceError for a GPU that none fits."""
        name = {9: "sm_90a", 12: "compute_120f"}.get(self.arch[0])
        if name is None:
            raise DeviceError(
                f"{self.name} has compute capability {self.arch[0]}.{self.arch[1]}; targets: {', '.join(TARGETS)}"
            )
        return TARGETS[name]

    def make_current(self) -> None:
        """Make the context current in this thread."""
        check(cu.cuCtxSetCurrent(self.context), "making the GPU's context current")

    def alloc(self, nbytes: int, what: str) -> int:
        """Device memory, aligned to 256 bytes or more. Raises DeviceError that says how much was free."""
        status, address = cu.cuMemAlloc(max(nbytes, 16))
        if int(status):
            free, total = check(cu.cuMemGetInfo(), "asking for free memory")
            raise DeviceError(
                f"no memory for {what}: {nbytes / 1e9:.2f} GB wanted, {free / 1e9:.2f} of {total / 1e9:.2f} GB free"
            )
        self._allocations.append(int(address))
        return int(address)

    def upload(self, array: np.ndarray, what: str) -> int:
        """New device memory that holds a copy of `array`."""
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        address = self.alloc(data.nbytes, what)
        for turn, start in enumerate(range(0, data.nbytes, STAGE_BYTES)):
            part = data[start : start + STAGE_BYTES]
            stage, free = self._stages()[turn % 2]
            check(cu.cuEventSynchronize(free), f"uploading {what}")  # the copy before last has left this stage
            stage[: len(part)] = part
            copy = cu.cuMemcpyHtoDAsync(address + start, stage.ctypes.data, len(part), self.stream)
            check(copy, f"uploading {what}")
            check(cu.cuEventRecord(free, self.stream), f"uploading {what}")
        return address

    def _stages(self) -> list[tuple[np.ndarray, Any]]:
        """Two stages of pinned memory, each with an event that says when it is free: one fills while the other is copied."""
        while len(self._staging) < 2:
            event = check(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING), "creating an event")
            self._staging.append((self.pinned(STAGE_BYTES)[0], event))
        return self._staging

    def write(self, address: int, array: np.ndarray) -> None:
        """Copy `array` to device memory, in stream order; the host array may change at once."""
        data = np.ascontiguousarray(array)
        if data.nbytes:
            check(cu.cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, self.stream), "writing to the GPU")

    def read(self, address: int, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Copy device memory to a new array, after everything in the stream."""
        array = np.empty(shape, dtype)
        self.synchronize("reading from the GPU")
        if array.nbytes:
            check(cu.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes), "reading from the GPU")
        return array

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Set every byte, in stream order."""
        if nbytes:
            check(cu.cuMemsetD8Async(address, byte, nbytes, self.stream), "filling memory")

    def pinned(self, nbytes: int) -> tuple[np.ndarray, int]:
        """Host memory that the GPU can write: a byte array of this process and its device address."""
        flags = cu.CU_MEMHOSTALLOC_DEVICEMAP | cu.CU_MEMHOSTALLOC_PORTABLE
        host = int(check(cu.cuMemHostAlloc(nbytes, flags), "allocating pinned memory"))
        self._pinned.append(host)
        array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(host))
        array[:] = 0
        return array, int(check(cu.cuMemHostGetDevicePointer(host, 0), "mapping pinned memory"))

    def synchronize(self, what: str = "waiting for the GPU") -> None:
        """Wait for the stream; a fault of a kernel appears here."""
        check(cu.cuStreamSynchronize(self.stream), what)

    def idle(self, what: str = "waiting for the GPU") -> bool:
        """Whether everything in the stream has ended, without waiting; a fault of a kernel appears here too."""
        (status,) = cu.cuStreamQuery(self.stream)
        if status == cu.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check((status,), what)
        return True

    def free_all(self) -> None:
        """Free every allocation; what used them must not be used again. Safe after a fault, when frees fail too."""
        with suppress(DeviceError):
            self.synchronize()
        for address in self._allocations:
            cu.cuMemFree(address)
        for host in self._pinned:
            cu.cuMemFreeHost(host)
        self._allocations, self._pinned, self._staging = [], [], []

    def close(self) -> None:
        """Free everything and let the GPU go."""
        self.make_current()
        self.free_all()
        cu.cuDevicePrimaryCtxRelease(self.handle)
