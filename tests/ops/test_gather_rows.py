"""GatherRows: exact copies of an earlier step's rows."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op
from ddtree.graph.ops import GatherRows
from ddtree.graph.rows import RowTable
from tests.ops.harness import (
    ROW_COUNTS,
    assert_same_bits,
    check_row_invariance,
    check_schedules,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    reference,
    tensor,
)

VERIFIED = 64  # rows of the earlier step


def gather(rows: int, *shape: int) -> Op:
    return make(GatherRows, x=tensor(VERIFIED, *shape, domain="source"), rows=rows)


def accepted(count: int, rng: np.random.Generator) -> RowTable:
    """`count` committed rows of one sequence that come from rows of an earlier step."""
    rows = prompt_rows([count], start=[3])
    rows.source = np.sort(rng.permutation(VERIFIED)[:count]).astype(np.int32)
    return rows


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_same_bits(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, rng: np.random.Generator) -> None:
    check(gather(64, 768), accepted(rows, rng), rng)


@pytest.mark.parametrize("shape", [(8,), (2, 40), (3 * 7168,)])
def test_any_width(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    check(gather(8, *shape), accepted(5, rng), rng)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = gather(64, 256), accepted(64, rng)
    check_row_invariance(op, random_inputs(op, rows, rng), rows)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = gather(8, 264), accepted(5, rng)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    check(gather(8, 264), accepted(5, rng), rng, run)
