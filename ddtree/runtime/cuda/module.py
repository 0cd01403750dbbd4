"""Cubins to launchable functions."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cu

from ddtree.errors import DeviceError
from ddtree.runtime.cuda.driver import Device, check
from ddtree.templates.kernel import Tile


@dataclass(frozen=True)
class Function:
    """One kernel, loaded and ready: `tile` says how it is launched."""

    tile: Tile
    handle: Any


def load(device: Device, cubins: Mapping[str, bytes], tiles: Mapping[str, Tile]) -> dict[str, Function]:
    """Load every kernel now, so that no first use waits for the GPU later. `cubins` and `tiles` by kernel name."""
    functions = {}
    for name, code in cubins.items():
        tile, what = tiles[name], f"loading kernel {name}"
        library = check(cu.cuLibraryLoadData(code, [], [], 0, [], [], 0), what)
        kernel = check(cu.cuLibraryGetKernel(library, name.encode()), what)
        handle = check(cu.cuKernelGetFunction(kernel), what)
        if tile.smem:  # static shared memory counts too against the 48 KB that need no leave
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(cu.cuFuncSetAttribute(handle, attribute, tile.smem), what)
        if tile.coresident:
            _require_resident(device, handle, tile)
        functions[name] = Function(tile, handle)
    return functions


def _require_resident(device: Device, handle: Any, tile: Tile) -> None:
    per_sm = check(
        cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, tile.block, tile.smem), "asking for occupancy"
    )
    blocks = tile.grid[0] * tile.grid[1] * tile.grid[2]
    if blocks > per_sm * device.sms:
        raise DeviceError(f"kernel {tile.name} needs {blocks} resident blocks, this GPU holds {per_sm * device.sms}")


class Call:
    """A function with its pointer arguments laid out once.

    It is launched as a programmatic dependent of the kernel before it in the stream: it may start while that one still runs.
    Every kernel waits (`pdl_wait`) before it touches what another kernel writes, and only reads weights before that.
    """

    def __init__(self, function: Function, tile: Tile, addresses: Sequence[int]) -> None:
        self.function, self.tile = function, tile  # equal names may be launched with other grids
        self._cells = [ctypes.c_uint64(a) for a in addresses]
        self._table = (ctypes.c_void_p * max(1, len(self._cells)))(*map(ctypes.addressof, self._cells))
        self._config = cu.CUlaunchConfig()
        c = self._config
        c.gridDimX, c.gridDimY, c.gridDimZ = tile.grid
        c.blockDimX, c.blockDimY, c.blockDimZ = tile.block, 1, 1
        c.sharedMemBytes = tile.smem
        early = cu.CUlaunchAttribute()
        early.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        c.attrs, c.numAttrs = [early], 1

    def launch(self, stream: Any, *, early: bool = True) -> None:
        """Put the kernel into the stream. `early=False`: only when the one before has ended, so that no blocks take room that
        other streams of the GPU wait for."""
        self._config.hStream, self._config.numAttrs = stream, int(early)
        result = cu.cuLaunchKernelEx(self._config, self.function.handle, ctypes.addressof(self._table), 0)
        check(result, f"launching {self.tile.name}")
