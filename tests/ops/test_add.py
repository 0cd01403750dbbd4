"""Add: exact, for both sum in fp32 and round once."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import Add
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


def addition(rows: int, width: int, domain: str = "rows") -> Op:
    return make(Add, a=tensor(rows, width, domain=domain), b=tensor(rows, width, domain=domain))


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_same_bits(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, rng: np.random.Generator) -> None:
    check(addition(64, 256), decode_rows([3] * rows), rng)


@pytest.mark.parametrize("width", [8, 40, 7168])
def test_any_width(width: int, rng: np.random.Generator) -> None:
    check(addition(9, width), decode_rows([3] * 7), rng)


def test_wanted_and_prompt_rows(rng: np.random.Generator) -> None:
    check(addition(4, 256, "wanted"), prompt_rows([5, 0, 70, 1]), rng)
    check(addition(256, 256), prompt_rows([200]), rng)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = addition(64, 256), decode_rows([3] * 64)
    check_row_invariance(op, random_inputs(op, rows, rng), rows)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = addition(9, 264), decode_rows([3] * 7)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_a_width_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    op, rows = addition(8, 12), decode_rows([3])
    with pytest.raises(OpError, match=r"12 elements.*multiple of 8"):
        emulate(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    check(addition(16, 264), decode_rows([3] * 9), np.random.default_rng(1), run)
