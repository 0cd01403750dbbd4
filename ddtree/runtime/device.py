"""Which device a command runs on."""

from __future__ import annotations

import re

from ddtree.errors import DeviceError, UsageError


def gpu_problem() -> str | None:
    """Why no GPU can be used here, or None when one can."""
    try:
        from cuda.bindings import driver

        (status,) = driver.cuInit(0)
        if int(status):
            return f"cuInit failed with {driver.cuGetErrorName(status)[1].decode()}"
        _, count = driver.cuDeviceGetCount()
        return None if count else "the driver finds no GPU"
    except (ImportError, RuntimeError, OSError) as e:
        return f"no NVIDIA driver ({str(e).splitlines()[0]})"


def choose(device: str) -> int | None:
    """The GPU to run on, None for the CPU. `auto` takes GPU 0 where there is one; an explicit `cuda[:N]` does not fall
    back. Raises UsageError or DeviceError.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", device)
    if not match:
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:N, found {device!r}")
    if device == "cpu":
        return None
    problem = gpu_problem()
    if problem and device == "auto":
        return None
    if problem:
        raise DeviceError(f"--device {device}: {problem}; use --device cpu")
    return int(match[1] or 0)
