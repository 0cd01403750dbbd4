"""CUDA C kernels executed on the CPU, with everything checked that can be checked. See docs/emulation.md."""

from tests.emulator.compiler import CompilerError, unsupported_reason
from tests.emulator.memory import bf16, guarded, poison_like
from tests.emulator.module import KernelError, Module, Stats
from tests.emulator.schedule import SCHEDULES, Schedule

__all__ = [
    "SCHEDULES",
    "CompilerError",
    "KernelError",
    "Module",
    "Schedule",
    "Stats",
    "bf16",
    "guarded",
    "poison_like",
    "unsupported_reason",
]
