"""Every test of this folder needs a GPU; it is opened once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.device import gpu_problem


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    problem = gpu_problem()
    if problem:
        pytest.skip(f"no GPU: {problem}")
    opened = Device()
    yield opened
    opened.close()
