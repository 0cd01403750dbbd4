"""SelectRows: exact copies of the wanted rows."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op
from ddtree.graph.ops import SelectRows
from ddtree.graph.rows import RowTable
from tests.ops.harness import (
    assert_same_bits,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    reference,
    tensor,
    with_rows,
)


def select(rows: int, wanted: int, *shape: int, dtype: str = "bf16") -> Op:
    return make(SelectRows, x=tensor(rows, *shape, dtype=dtype), y=tensor(wanted, *shape, dtype=dtype, domain="wanted"))


def drafted(blocks: int, block: int) -> RowTable:
    """All slots of draft blocks but the first of each are wanted."""
    rows = prompt_rows([block] * blocks, start=[3] * blocks)
    rows.wanted = np.flatnonzero(np.arange(len(rows)) % block).astype(np.int32)
    return rows


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_same_bits(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


@pytest.mark.parametrize("hidden", [8, 256, 7168])
def test_last_prompt_rows(hidden: int, rng: np.random.Generator) -> None:
    check(select(256, 4, hidden), prompt_rows([5, 0, 70, 1]), rng)


@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_drafted_slots(blocks: int, rng: np.random.Generator) -> None:
    check(select(64, 56, 256), drafted(blocks, 8), rng)


def test_no_row_is_wanted(rng: np.random.Generator) -> None:
    rows = prompt_rows([5])
    rows.wanted = np.empty(0, np.int32)
    check(select(8, 4, 256), rows, rng)


def test_every_row_is_wanted(rng: np.random.Generator) -> None:
    check(select(16, 16, 2, 32), decode_rows([3] * 9), rng)


def test_fp32_rows(rng: np.random.Generator) -> None:
    check(select(64, 56, 20, dtype="fp32"), drafted(2, 8), rng)


def test_the_row_capacity_does_not_matter(rng: np.random.Generator) -> None:
    op, rows = select(64, 56, 256), drafted(2, 8)
    inputs = random_inputs(op, rows, rng)
    assert_same_bits(emulate(with_rows(op, 16), inputs, rows)["y"], emulate(op, inputs, rows)["y"])


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = select(64, 56, 264), drafted(1, 8)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    check(select(64, 56, 264), drafted(2, 8), np.random.default_rng(1), run)
