"""Deliberate faults in the kernels, each caught by the test of its op.

tests/ops/mutations/NAME.py lists MUTATIONS = [(header, old text, new text), ...]: one plausible fault each, in a header of
ddtree/templates/include/ddtree in which the old text occurs once. tests/ops/test_NAME.py has `catches(emulate)`: small
checks of the op, which call the given function instead of harness.emulate. They must pass on the kernels as they are
and fail on every mutation, by an assertion or by a report of the emulator; a mutation that does not compile proves nothing.

Every run plants the first faults of each list; `pytest -m thorough` plants the others.
"""

from __future__ import annotations

import functools
import gc
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.emulator import KernelError
from tests.ops.harness import Mutation, emulate

NAMES = sorted(path.stem for path in (Path(__file__).parent / "mutations").glob("*.py"))


@pytest.fixture(autouse=True)
def _memory_of_failed_launches() -> Iterator[None]:
    """A caught error holds its frames, and they the guarded memory of a launch, until cycles are collected."""
    yield
    gc.collect()


def mutations(name: str) -> list[Mutation]:
    return importlib.import_module(f"tests.ops.mutations.{name}").MUTATIONS


FIRST = 8  # faults of an op that every run plants


def cases() -> list[tuple[str, Mutation]]:
    return [(name, mutation) for name in NAMES for mutation in mutations(name)]


def marked() -> list[ParameterSet]:
    """All cases, those past the first of each op marked."""
    return [
        pytest.param(name, mutation, marks=[pytest.mark.thorough] if turn >= FIRST else [])
        for name in NAMES
        for turn, mutation in enumerate(mutations(name))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_pass_unchanged(name: str) -> None:
    importlib.import_module(f"tests.ops.test_{name}").catches(emulate)


@pytest.mark.parametrize(
    ("name", "mutation"), marked(), ids=lambda value: value if isinstance(value, str) else value[1]
)
def test_a_fault_is_caught(name: str, mutation: Mutation) -> None:
    with pytest.raises((AssertionError, KernelError)):
        importlib.import_module(f"tests.ops.test_{name}").catches(functools.partial(emulate, mutation=mutation))


def test_there_are_enough_of_them() -> None:
    assert len(set(cases())) == len(cases()) >= 30
