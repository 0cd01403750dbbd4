"""Every op's own check, on the GPU."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from ddtree.runtime.cuda.driver import Device
from tests.gpu.harness import gpu_runner

OPS = sorted(p.stem.removeprefix("test_") for p in (Path(__file__).parents[1] / "ops").glob("test_*.py"))


@pytest.mark.parametrize("name", [n for n in OPS if n not in ("mutations", "harness", "panels", "ranks")])
def test_op_on_the_gpu(name: str, device: Device) -> None:
    importlib.import_module(f"tests.ops.test_{name}").catches(gpu_runner(device))
