"""Every op's own check, on the GPU."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from ddtree.runtime.cuda.driver import Device
from tests.gpu.harness import gpu_runner

FILES = sorted((Path(__file__).parents[1] / "ops").glob("test_*.py"))
OPS = [p.stem.removeprefix("test_") for p in FILES if "\ndef catches(" in p.read_text()]


@pytest.mark.parametrize("name", OPS)
def test_op_on_the_gpu(name: str, device: Device) -> None:
    importlib.import_module(f"tests.ops.test_{name}").catches(gpu_runner(device))
