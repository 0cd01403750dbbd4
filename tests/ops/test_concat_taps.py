"""ConcatTaps: exact copies, side by side."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import ConcatTaps
from ddtree.graph.rows import RowTable
from tests.ops.harness import (
    ROW_COUNTS,
    assert_same_bits,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    reference,
    tensor,
)


def concat(rows: int, taps: int, hidden: int) -> Op:
    return make(ConcatTaps, taps=tuple(tensor(rows, hidden) for _ in range(taps)))


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_same_bits(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, rng: np.random.Generator) -> None:
    check(concat(64, 3, 256), decode_rows([3] * rows), rng)


@pytest.mark.parametrize(("taps", "hidden"), [(1, 8), (2, 40), (6, 7168)])
def test_any_number_and_width(taps: int, hidden: int, rng: np.random.Generator) -> None:
    check(concat(8, taps, hidden), decode_rows([3] * 5), rng)


def test_prompt_rows(rng: np.random.Generator) -> None:
    check(concat(256, 3, 256), prompt_rows([200]), rng)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = concat(64, 3, 256), decode_rows([3] * 64)
    check_row_invariance(op, random_inputs(op, rows, rng), rows)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = concat(8, 3, 264), decode_rows([3] * 5)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_taps_of_different_widths_are_refused(rng: np.random.Generator) -> None:
    op, rows = make(ConcatTaps, taps=(tensor(8, 16), tensor(8, 32))), decode_rows([3])
    with pytest.raises(OpError, match=r"equally wide, found \[16, 32\]"):
        emulate(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    check(concat(8, 3, 264), decode_rows([3] * 5), np.random.default_rng(1), run)
