"""prims.cuh and vec.cuh on the emulator, bit for bit against NumPy, under every schedule and both kinds of copies."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.emulator import SCHEDULES, Module, Schedule, unsupported_reason
from tests.emulator.cases import CASES, NAMES, SOURCE, Case
from tests.emulator.compiler import Mode

if reason := unsupported_reason():
    pytest.skip(reason, allow_module_level=True)


@cache
def module(mode: Mode) -> Module:
    return Module(SOURCE, NAMES, mode=mode)


def run(case: Case, mode: Mode, schedule: Schedule, delayed: bool) -> None:
    args = case.fresh_args()
    module(mode).launch(
        case.kernel,
        case.grid,
        case.block,
        args,
        case.smem,
        schedule,
        delayed_copies=delayed,
        cooperative=case.cooperative,
    )
    for position, want in zip(case.outputs, case.want, strict=True):
        np.testing.assert_array_equal(args[position].reshape(want.shape), want, strict=True)


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_primitive_equals_numpy(name: str, schedule: Schedule, delayed: bool) -> None:
    run(CASES[name], "fast", schedule, delayed)


@pytest.mark.parametrize("name", CASES)
def test_correct_kernels_pass_the_race_detector(name: str) -> None:
    for schedule in SCHEDULES[:2] + SCHEDULES[5:]:
        run(CASES[name], "check", schedule, delayed=True)
