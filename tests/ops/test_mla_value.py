"""MlaValue: head values from attended latents, generated and prompt rows.

Tolerance: other orders of fp32 sums of standard deviation 1 (`atol`) move few values over a bf16 rounding boundary
(`share`), by one step.
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import MlaValue
from ddtree.graph.rows import RowTable
from tests.ops.harness import (
    ROW_COUNTS,
    assert_close,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    reference,
    rendered,
    tensor,
    weight,
)

ATOL = 4e-6


def values(heads: int, nope: int, value: int, latent: int, rows: int = 64) -> Op:
    return make(MlaValue, z=tensor(rows, heads, latent), weight=weight(heads * (nope + value), latent), value=value)


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate, **options) -> None:
    inputs = random_inputs(op, rows, rng)
    got, want = run(op, inputs, rows, **options)["y"], reference(op, inputs, rows)["y"]
    assert_close(got, want, atol=ATOL, share=0.01)


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, tree: bool, rng: np.random.Generator) -> None:
    check(values(8, 32, 32, 128), decode_rows([3] * rows), rng, tree=tree)


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
@pytest.mark.parametrize("shape", [(1, 8, 8, 8), (2, 32, 32, 128), (3, 16, 24, 136), (2, 128, 128, 512)], ids=str)
def test_any_shape(shape: tuple[int, ...], tree: bool, rng: np.random.Generator) -> None:
    check(values(*shape, rows=16), decode_rows([3] * 11), rng, tree=tree)


def test_prompt_rows_of_several_groups(rng: np.random.Generator) -> None:
    check(values(4, 8, 40, 136, rows=200), prompt_rows([60, 0, 43]), rng)


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
def test_a_row_does_not_depend_on_its_company(tree: bool, rng: np.random.Generator) -> None:
    op, rows = values(2, 16, 24, 512), decode_rows([3] * 64)
    check_row_invariance(op, random_inputs(op, rows, rng), rows, tree=tree)


def test_schedules_and_races(rng: np.random.Generator) -> None:
    op, rows = values(2, 16, 24, 512, rows=16), decode_rows([3] * 9)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_what_the_kernel_refuses() -> None:
    with pytest.raises(OpError, match="multiple of 8"):
        rendered(values(2, 32, 36, 64), tree=True)


def catches(run) -> None:
    rng = np.random.default_rng(0)
    check(values(3, 16, 72, 136, rows=40), decode_rows([3] * 35), rng, run)
    check(values(2, 8, 16, 512, rows=8), decode_rows([3] * 5), rng, run)
