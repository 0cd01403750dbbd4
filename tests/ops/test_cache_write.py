"""CacheWrite: every row to its place, and nothing else touched: pages and scratch are compared whole."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import CacheWrite
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import Cache
from tests.ops.harness import (
    ROW_COUNTS,
    SCHEDULES,
    assert_same_bits,
    cache,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    reference,
    tensor,
    tree_rows,
)


def write(rows: int, c: Cache) -> Op:
    return make(CacheWrite, x=tensor(rows, *c.row), cache=c)


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    for schedule in SCHEDULES[:2]:  # whichever of two rows for one place came last would stay
        assert_same_bits(run(op, inputs, rows, schedule=schedule)["cache"], reference(op, inputs, rows)["cache"])


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_plain_decoding_writes_scratch(rows: int, rng: np.random.Generator) -> None:
    check(write(64, cache(160)), decode_rows(rng.integers(0, 200, rows)), rng)


@pytest.mark.parametrize("free_slots", [False, True])
def test_tree_rows_go_to_their_scratch_slots(free_slots: bool, rng: np.random.Generator) -> None:
    check(write(64, cache(576)), tree_rows([70, 0, 3, 64], [5, 31, 0, 8], free_slots=free_slots), rng)
    check(write(64, cache(8)), tree_rows([65], [64], free_slots=free_slots), rng)


@pytest.mark.parametrize("start", [0, 1, 62, 63, 64, 65, 300])
def test_committed_rows_go_to_pages(start: int, rng: np.random.Generator) -> None:
    check(write(256, cache(2, 32)), prompt_rows([100, 0, 1, 64], start=[start, 0, 63, 1]), rng)


@pytest.mark.parametrize("length", [1, 64, 127, 128, 129, 300])
def test_a_ring_keeps_the_newest_rows(length: int, rng: np.random.Generator) -> None:
    ring = cache(2, 32, window=100)  # 128 positions
    check(write(512, ring), prompt_rows([length, 0, 3, 130], start=[60, 0, 127, 1000]), rng)


@pytest.mark.parametrize("window", [None, 128])
def test_no_two_blocks_write_one_place(window: int | None, rng: np.random.Generator) -> None:
    op, rows = write(512, cache(2, 32, window=window)), prompt_rows([300, 0, 3], start=[60, 0, 127])
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_every_schedule_of_tree_rows(rng: np.random.Generator) -> None:
    op, rows = write(64, cache(160)), tree_rows([70, 0, 3], [5, 0, 8], free_slots=True)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_a_row_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    op, rows = write(8, cache(12)), decode_rows([3])
    with pytest.raises(OpError, match=r"24 bytes.*multiple of 16"):
        emulate(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    check(write(64, cache(160)), tree_rows([70, 0, 3, 64], [5, 31, 0, 8], free_slots=True), rng, run)
    check(write(256, cache(2, 32)), prompt_rows([100, 0, 1, 64], start=[62, 0, 63, 1]), rng, run)
    check(write(512, cache(2, 32, window=100)), prompt_rows([300, 0, 3, 130], start=[60, 0, 127, 1000]), rng, run)
