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


def choose(device: str) -> str:
    """The device to run on: `cpu`. `auto` falls back to it, an explicit `cuda[:i]` does not. Raises DeviceError."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise UsageError(f"--device must be auto, cpu, cuda or cuda:N, found {device!r}")
    if device.startswith("cuda"):
        problem = gpu_problem()
        raise DeviceError(f"--device {device}: {problem or 'this version has no GPU runtime yet'}; use --device cpu")
    return "cpu"
