"""AllReduce: the sum in rank order in fp32, rounded once, bit for bit, in one shot and in two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddtree.graph.numerics import round_bf16
from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import AllReduce
from ddtree.graph.rows import RowTable
from ddtree.templates.target import TARGETS
from tests.ops.harness import (
    ROW_COUNTS,
    assert_same_bits,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    reference,
    tensor,
)


def reduction(rows: int, width: int, ranks: int, domain: str = "rows") -> Op:
    return make(AllReduce, x=tensor(rows, width, domain=domain), ranks=ranks)


def parts(rng: np.random.Generator, ranks: int, rows: int, width: int) -> list[np.ndarray]:
    """Parts of very different size, half of the last rank's the negative of the first's, so that the order of the sum
    shows."""
    x = [
        round_bf16(rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-6, 7, (rows, width)))
        for _ in range(ranks)
    ]
    x[-1] = np.where(rng.random((rows, width)) < 0.5, -x[0], x[-1])
    return x


def check(op: Op, x: list[np.ndarray], rows: RowTable, run: Any = emulate, **options: Any) -> None:
    assert_same_bits(run(op, {"x": x}, rows, **options)["y"], reference(op, {"x": x}, rows)["y"])


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_equals_the_reference(ranks: int, rng: np.random.Generator) -> None:
    check(reduction(64, 256, ranks), parts(rng, ranks, 33, 256), decode_rows([3] * 33))


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, rng: np.random.Generator) -> None:
    check(reduction(64, 256, 2), parts(rng, 2, rows, 256), decode_rows([3] * rows))


@pytest.mark.parametrize("width", [8, 264, 7168])
def test_any_width(width: int, rng: np.random.Generator) -> None:
    check(reduction(8, width, 8), parts(rng, 8, 5, width), decode_rows([3] * 5))


def test_wanted_and_prompt_rows(rng: np.random.Generator) -> None:
    check(reduction(4, 256, 2, "wanted"), parts(rng, 2, 3, 256), prompt_rows([5, 0, 70, 1]))
    few = replace(TARGETS["compute_120f"], sms=3)
    check(reduction(120, 256, 2), parts(rng, 2, 100, 256), prompt_rows([100]), target=few)  # a block has many rows


def test_the_sum_is_rounded_once() -> None:
    """1 + 2**-9 + 2**-9 is 1 + 2**-8, a tie that rounds to 1.0; with a third 2**-9 it is above the tie. Adding in bf16
    would lose every one of them."""
    small = np.full((1, 8), 2.0**-9, np.float32)
    got = emulate(reduction(8, 8, 4), {"x": [np.ones((1, 8), np.float32), small, small, small]}, decode_rows([3]))["y"]
    assert (got == 1 + 2.0**-7).all()


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    check_row_invariance(reduction(64, 256, 4), {"x": parts(rng, 4, 64, 256)}, decode_rows([3] * 64))


def test_every_schedule(rng: np.random.Generator) -> None:
    check_schedules(reduction(9, 264, 3), {"x": parts(rng, 3, 7, 264)}, decode_rows([3] * 7))


def test_a_width_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    with pytest.raises(OpError, match=r"12 elements.*multiple of 8"):
        check(reduction(8, 12, 2), parts(rng, 2, 1, 12), decode_rows([3]))


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    check(reduction(16, 264, 4), parts(rng, 4, 9, 264), decode_rows([3] * 9), run)
