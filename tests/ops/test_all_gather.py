"""AllGather: every rank's columns side by side, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddtree.graph.numerics import round_bf16
from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import AllGather
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


def gathering(rows: int, width: int, ranks: int, dtype: str = "fp32", domain: str = "rows") -> Op:
    return make(AllGather, x=tensor(rows, width, dtype=dtype, domain=domain), ranks=ranks)


def parts(rng: np.random.Generator, ranks: int, rows: int, width: int) -> list[np.ndarray]:
    return [rng.standard_normal((rows, width)).astype(np.float32) for _ in range(ranks)]


def check(op: Op, x: list[np.ndarray], rows: RowTable, run: Any = emulate, **options: Any) -> None:
    assert_same_bits(run(op, {"x": x}, rows, **options)["y"], reference(op, {"x": x}, rows)["y"])


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_equals_the_reference(ranks: int, rng: np.random.Generator) -> None:
    check(gathering(64, 512, ranks), parts(rng, ranks, 33, 512), decode_rows([3] * 33))


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, rng: np.random.Generator) -> None:
    check(gathering(64, 64, 2), parts(rng, 2, rows, 64), decode_rows([3] * rows))


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 8), ("bf16", 264), ("fp32", 4), ("fp32", 20480)])
def test_any_type_and_width(dtype: str, width: int, rng: np.random.Generator) -> None:
    x = [round_bf16(p) if dtype == "bf16" else p for p in parts(rng, 4, 5, width)]
    check(gathering(8, width, 4, dtype), x, decode_rows([3] * 5))


def test_wanted_and_prompt_rows(rng: np.random.Generator) -> None:
    check(gathering(4, 64, 2, domain="wanted"), parts(rng, 2, 3, 64), prompt_rows([5, 0, 70, 1]))
    few = replace(TARGETS["compute_120f"], sms=3)
    check(gathering(120, 1024, 2), parts(rng, 2, 100, 1024), prompt_rows([100]), target=few)


def some_nan(rng: np.random.Generator) -> list[np.ndarray]:
    """Parts of two ranks with NaNs of every kind, that of an empty mailbox included."""
    x = [p.view(np.uint32) for p in parts(rng, 2, 5, 68)]
    for part in x:
        part[rng.random(part.shape) < 0.3] = 0xFFFFFFFF
        part[rng.random(part.shape) < 0.1] = 0x7FC00000
    return [part.view(np.float32) for part in x]


def test_nan_arrives_as_nan(rng: np.random.Generator) -> None:
    check(gathering(8, 68, 2), some_nan(rng), decode_rows([3] * 5))


def test_whole_numbers_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(OpError, match="exchange bf16 and fp32, found int32"):
        check(gathering(8, 8, 2, "int32"), [np.ones((1, 8), np.int32)] * 2, decode_rows([3]))


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    check_row_invariance(gathering(64, 64, 4), {"x": parts(rng, 4, 64, 64)}, decode_rows([3] * 64))


def test_every_schedule(rng: np.random.Generator) -> None:
    check_schedules(gathering(9, 68, 3), {"x": parts(rng, 3, 7, 68)}, decode_rows([3] * 7))


def test_rows_without_whole_vectors_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(OpError, match=r"24 bytes.*multiple of 16"):
        check(gathering(8, 6, 2), parts(rng, 2, 1, 6), decode_rows([3]))


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    check(gathering(16, 68, 4), parts(rng, 4, 9, 68), decode_rows([3] * 9), run)
    check(gathering(8, 68, 2), some_nan(rng), decode_rows([3] * 5), run)
