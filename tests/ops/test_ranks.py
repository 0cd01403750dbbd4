"""The messages of a group: ranks that run ahead of each other, buffers that are used again, a rank that never comes."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import Op
from ddtree.graph.ops import AllReduce
from ddtree.templates.group import FAILED, MISSING, silent_ranks
from ddtree.templates.kernel import Kernel
from ddtree.templates.render import render
from ddtree.templates.target import TARGETS, Target
from tests.emulator import SCHEDULES, Module, Schedule
from tests.ops.harness import _module, assert_same_bits, decode_rows, make, reference, tensor
from tests.ops.test_all_reduce import parts
from tests.ops.together import ALWAYS, NEVER, Ranks, memories

ONE_BLOCK = replace(TARGETS["compute_120f"], sms=1)
ROWS, WIDTH, RANKS = 4, 72, 3


def reduction(target: Target = ONE_BLOCK) -> tuple[Op, Kernel]:
    op = make(AllReduce, x=tensor(ROWS, WIDTH), ranks=RANKS)
    (kernel,) = render(op, target, tree=True)
    return op, kernel


def load(source: str, name: str, mutation: Any = None) -> Module:
    return _module(source, name, "fast", mutation)


def check_messages(
    count: int, seed: int, schedule: Schedule, one_shot: int = 2 * WIDTH // 8, mutation: Any = None, mode: str = "fast"
) -> None:
    """`count` messages of 1..ROWS rows in one launch, so that a rank posts the next one while others still read the last;
    with the default threshold some go in one shot, some in two."""
    rng, (op, kernel) = np.random.default_rng(seed), reduction()
    group = Ranks([op], RANKS, one_shot=one_shot)
    messages, wanted = [], []
    for _ in range(count):
        rows = decode_rows([3] * int(rng.integers(1, ROWS + 1)))
        inputs = {"x": parts(rng, RANKS, len(rows), WIDTH)}
        messages.append(memories(op, inputs, rows, kernel))
        wanted.append(reference(op, inputs, rows)["y"])
    calls = [group.arguments(kernel.tile, ranks) for ranks in messages]
    module = functools.partial(_module, mode=mode, mutation=mutation)
    group.launch(kernel.tile, kernel.source, calls, module, schedule=schedule)
    group.check()
    for ranks, want in zip(messages, wanted, strict=True):
        for memory in ranks:
            assert_same_bits(memory.results()["y"], want)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_ranks_may_run_ahead_of_each_other(schedule: Schedule) -> None:
    check_messages(40, 0, schedule)
    for one_shot in (ALWAYS, NEVER):
        check_messages(10, 1, schedule, one_shot)


def test_no_races() -> None:
    check_messages(8, 2, SCHEDULES[0], mode="check")


def test_a_group_goes_on_where_it_stopped() -> None:
    """As a captured graph does: launches that follow one another share nothing but the group's memory."""
    rng, (op, kernel) = np.random.default_rng(3), reduction(TARGETS["compute_120f"])
    group = Ranks([op], RANKS)
    for message in range(10):
        group.send_whole((ALWAYS, NEVER)[message % 2])
        rows = decode_rows([3] * int(rng.integers(1, ROWS + 1)))
        inputs = {"x": parts(rng, RANKS, len(rows), WIDTH)}
        ranks = memories(op, inputs, rows, kernel)
        schedule = SCHEDULES[message % len(SCHEDULES)]
        group.launch(kernel.tile, kernel.source, [group.arguments(kernel.tile, ranks)], load, schedule=schedule)
        group.check()
        for memory in ranks:
            assert_same_bits(memory.results()["y"], reference(op, inputs, rows)["y"])


def run_without_the_last(group: Ranks, op: Op, kernel: Kernel) -> list[int]:
    """A message for which the last rank does not come; every rank's `missing`."""
    rows = decode_rows([3] * ROWS)
    ranks = memories(op, {"x": parts(np.random.default_rng(4), RANKS, ROWS, WIDTH)}, rows, kernel)
    group.launch(kernel.tile, kernel.source, [group.arguments(kernel.tile, ranks[:-1])], load)
    assert all(group.word(rank, FAILED) for rank in range(RANKS)), "every rank is told, the late one too"
    return [group.word(rank, MISSING) for rank in range(RANKS)]


@pytest.mark.parametrize("one_shot", [ALWAYS, NEVER])
def test_a_rank_that_does_not_come_ends_all_and_is_named(one_shot: int) -> None:
    op, kernel = reduction()
    group = Ranks([op], RANKS, one_shot=one_shot, limit=0)
    missing = run_without_the_last(group, op, kernel)
    assert silent_ranks(missing) == [RANKS - 1]
    assert run_without_the_last(group, op, kernel) == missing, "later messages wait for nobody and blame nobody"


def test_who_is_to_blame() -> None:
    assert silent_ranks([0, 0, 0]) == []
    assert silent_ranks([0b100, 0b100, 0]) == [2]
    assert silent_ranks([0b010, 0b101, 0]) == [2], "rank 0 waited for rank 1, which waited for rank 2"
    assert silent_ranks([0b10, 0b01]) == [], "a lost message"
    assert silent_ranks([0b0100, 0b1000, 0, 0]) == [2, 3]


def catches(run: Any) -> None:
    mutation = run.keywords.get("mutation") if isinstance(run, functools.partial) else None
    for schedule in SCHEDULES:
        check_messages(12, 5, schedule, mutation=mutation)
