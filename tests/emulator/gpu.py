"""The same kernels on a GPU, with the emulator's launch(): what the parity tests compare with."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from tests.emulator.arguments import pack
from tests.emulator.module import Module, extents
from tests.emulator.nvrtc import compile_cubin

HANG_S = 10.0


def _check(result: tuple[Any, ...]) -> Any:
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) > 1 else None


def target() -> str:
    """Start the first GPU's context; the NVRTC architecture for it."""
    _check(cu.cuInit(0))
    device = _check(cu.cuDeviceGet(0))
    _check(cu.cuCtxSetCurrent(_check(cu.cuDevicePrimaryCtxRetain(device))))
    major = _check(cu.cuDeviceGetAttribute(cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    return {9: "sm_90a", 12: "sm_120f"}[major]


class GpuModule:
    """A source compiled by NVRTC and loaded. Arguments are encoded by the parameter lists of its emulated twin."""

    def __init__(self, source: str, twin: Module, *options: str) -> None:
        self._twin = twin
        self._module = _check(cu.cuModuleLoadData(compile_cubin(source, target(), *options)))

    def launch(
        self, name: str, grid: Sequence[int] | int, block: Sequence[int] | int, args: Sequence[Any], smem: int = 0,
        cooperative: bool = False,
    ) -> None:  # fmt: skip
        """Run kernel `name` to its end; arrays are copied to the GPU and back."""
        arrays = [
            (i, a, int(_check(cu.cuMemAlloc(max(16, a.nbytes)))))
            for i, a in enumerate(args)
            if isinstance(a, np.ndarray)
        ]
        values = list(args)
        for i, array, pointer in arrays:
            _check(cu.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
            values[i] = pointer
        packed = pack(name, self._twin.describe(name), values)
        function = _check(cu.cuModuleGetFunction(self._module, name.encode()))
        start = cu.cuLaunchCooperativeKernel if cooperative else cu.cuLaunchKernel
        extra = () if cooperative else (0,)
        _check(
            start(
                function,
                *extents("grid", grid),
                *extents("block", block),
                smem,
                0,
                ctypes.addressof(packed.table),
                *extra,
            )
        )
        deadline = time.monotonic() + HANG_S
        while cu.cuStreamQuery(0)[0] == cu.CUresult.CUDA_ERROR_NOT_READY:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} hangs on the GPU")
        _check(cu.cuStreamSynchronize(0))
        for _, array, pointer in arrays:
            _check(cu.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
            _check(cu.cuMemFree(pointer))
