"""Compile a CUDA C kernel for the CPU and launch it with the arguments of cuLaunchKernel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator.arguments import Packed, max_threads, pack
from tests.emulator.build import kernel_library, runtime_library
from tests.emulator.compiler import Mode, find_compiler
from tests.emulator.line_table import source_line
from tests.emulator.schedule import SCHEDULES, Schedule

SHARED_LIMIT = 101_376


class KernelError(RuntimeError):
    """A kernel did something wrong; the message says what, where and which thread."""


@dataclass(frozen=True)
class Stats:
    """What a launch did. static_shared: bytes of SHARED_ARRAYs; seconds: wall clock."""

    switches: int
    collectives: int
    barriers: int
    mmas: int
    static_shared: int
    seconds: float


class _Options(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int)
            for name in ("order", "depth_first", "seed", "delay_copies", "cooperative", "check_races", "exact_mma")
        ),
        ("timeout_s", ctypes.c_double),
        ("buffer_count", ctypes.c_int),
        ("buffers", ctypes.c_void_p),
    ]


class _Result(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("switches", "collectives", "barriers", "mmas")),
        ("seconds", ctypes.c_double),
        ("pc", ctypes.c_uint64),
        ("static_shared", ctypes.c_uint32),
        ("message", ctypes.c_char * 4000),
    ]


_one_launch_at_a_time = threading.Lock()


class Module:
    """A kernel source compiled for the CPU.

    source         CUDA C, as NVRTC would get it
    names          its extern "C" kernels
    mode           fast, or check: adds the race detector and checks of every alignment, array index and shift
    include_dirs   searched before ddtree/templates/include
    defines        macros, "NAME" or "NAME=VALUE"
    compiler       gcc, clang or zig; default: the first that is installed
    Raises CompilerError with the compiler's text when the source does not compile.
    """

    def __init__(
        self,
        source: str,
        names: Sequence[str],
        mode: Mode = "fast",
        include_dirs: Sequence[Path | str] = (),
        defines: Sequence[str] = (),
        compiler: str | None = None,
    ) -> None:
        found = find_compiler(compiler)
        self.mode = mode
        self.library = kernel_library(source, names, mode, [Path(d) for d in include_dirs], defines, found)
        self._code = ctypes.CDLL(str(self.library))
        self._launch = ctypes.CDLL(str(runtime_library(found))).emu_launch
        self._names = list(names)

    def launch(
        self,
        name: str,
        grid: Sequence[int] | int,
        block: Sequence[int] | int,
        args: Sequence[Any],
        smem: int = 0,
        schedule: Schedule = SCHEDULES[0],
        *,
        delayed_copies: bool = True,
        cooperative: bool = False,
        check_races: bool = True,
        exact_mma: bool = False,
        timeout: float = 60.0,
    ) -> Stats:
        """Run kernel `name`; array arguments are read and written in place, as device memory would be.

        grid, block      up to three extents
        args             arrays, None (null), ints, floats, NumPy scalars, bytes or ctypes structures; checked against the
                         kernel's parameter list. Arrays not made by `guarded` are copied to guarded memory and back.
        smem             dynamic shared memory in bytes; with the SHARED_ARRAYs at most 101,376
        delayed_copies   asynchronous copies happen at their wait (True) or when they are issued (False)
        cooperative      all blocks are resident at once; without it they run one after the other
        check_races      race detector on; only in check mode
        exact_mma        tensor cores round as an H200's do (ten times slower); else fp32 fused multiply-adds
        timeout          seconds
        Raises KernelError for what the kernel did wrong, ValueError for a wrong launch.
        """
        if name not in self._names:
            raise ValueError(f"no kernel {name!r}: this module has {', '.join(self._names)}")
        grid3, block3 = extents("grid", grid), extents("block", block)
        threads = block3[0] * block3[1] * block3[2]
        if threads > (bound := max_threads(self.describe(name))):
            raise ValueError(f"{name}, block {block3}: {threads} threads, its launch bounds say {bound}")
        if not 0 <= smem <= SHARED_LIMIT:
            raise ValueError(f"{smem} bytes of dynamic shared memory, at most {SHARED_LIMIT}")
        packed = pack(name, self.describe(name), args)
        options = _Options(
            schedule.order_code, schedule.depth_first, schedule.seed, delayed_copies, cooperative,
            check_races and self.mode == "check", exact_mma, timeout, packed.buffer_count, ctypes.addressof(packed.buffers),
        )  # fmt: skip
        result = _Result()
        with _one_launch_at_a_time:
            failed = self._call(name, grid3, block3, smem, packed, options, result)
        if failed:
            raise KernelError(result.message.decode(errors="replace") + self._where(result.pc))
        packed.copy_back()
        return Stats(
            result.switches, result.collectives, result.barriers, result.mmas, result.static_shared, result.seconds
        )

    def _call(
        self,
        name: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        smem: int,
        packed: Packed,
        options: _Options,
        result: _Result,
    ) -> int:
        triple = ctypes.c_uint * 3
        return int(self._launch(
            ctypes.c_void_p(self.describe(name)), triple(*grid), triple(*block), ctypes.c_uint(smem), packed.table,
            ctypes.byref(options), ctypes.byref(result),
        ))  # fmt: skip

    def describe(self, name: str) -> int:
        """Address of the kernel's description, for `pack`."""
        return ctypes.addressof(ctypes.c_void_p.in_dll(self._code, f"emulated_{name}"))

    def _where(self, offset: int) -> str:
        line = source_line(self.library, offset - 1) if offset else None
        return f" [{line}]" if line else ""


def extents(what: str, value: Sequence[int] | int) -> tuple[int, int, int]:
    """A grid or block of one to three extents as three."""
    values = (value,) if isinstance(value, int | np.integer) else tuple(value)
    if not 1 <= len(values) <= 3 or any(v < 1 for v in values):
        raise ValueError(f"{what} {values}: expected one to three positive extents")
    x, y, z = (*(int(v) for v in values), 1, 1)[:3]
    return x, y, z
