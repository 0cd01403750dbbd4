"""RmsNorm: rounding points, any number of heads, rows independent of one another.

Tolerance: one bf16 step, because the order of the sum and rsqrt (2 ulp of fp32) may move a value across a rounding
boundary, at the first rounding or at the second; few values are so close to one.
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import RmsNorm
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
    tensor,
    weight,
)


def norm(*shape: int, eps: float = 1e-5, domain: str = "rows") -> Op:
    return make(RmsNorm, x=tensor(*shape, domain=domain), weight=weight(shape[-1]), eps=eps)


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_close(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"], share=0.01)


@pytest.mark.parametrize(
    "shape", [(8,), (24,), (256,), (264,), (512,), (1536,), (7168,), (8, 32), (3, 40), (8, 128), (2, 512)]
)
def test_equals_the_reference(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    for count in (1, 7, 33):
        check(norm(40, *shape), decode_rows([3] * count), rng)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, rng: np.random.Generator) -> None:
    check(norm(64, 256), decode_rows([3] * rows), rng)


def test_wanted_rows_are_counted_by_the_row_table(rng: np.random.Generator) -> None:
    check(norm(4, 256, domain="wanted"), prompt_rows([5, 0, 70, 1]), rng)


def test_prompt_rows(rng: np.random.Generator) -> None:
    check(norm(256, 256), prompt_rows([200]), rng)


@pytest.mark.parametrize("shape", [(7168,), (8, 32), (2, 128)])
def test_a_row_does_not_depend_on_its_company(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    op, rows = norm(64, *shape), decode_rows([3] * 64)
    check_row_invariance(op, random_inputs(op, rows, rng), rows)


@pytest.mark.parametrize("shape", [(1536,), (8, 32)])
def test_every_schedule(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    op, rows = norm(8, *shape), decode_rows([3] * 5)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_a_row_of_zeros_stays_finite(rng: np.random.Generator) -> None:
    op, rows = norm(8, 256), decode_rows([3])
    inputs = random_inputs(op, rows, rng, x=np.zeros((1, 256)))
    assert not emulate(op, inputs, rows)["y"].any()


def test_a_width_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    op, rows = norm(8, 12), decode_rows([3])
    with pytest.raises(OpError, match=r"12 elements.*multiple of 8"):
        emulate(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    for shape in ((1536,), (3, 40)):
        check(norm(8, *shape, eps=0.1), decode_rows([3] * 5), rng, run)
