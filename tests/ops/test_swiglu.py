"""Swiglu: the gated activation.

Tolerance: one bf16 step in few values, because expf may differ from NumPy's exp by 2 ulp of fp32.
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import Swiglu
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
)


def gated(rows: int, width: int) -> Op:
    return make(Swiglu, gate=tensor(rows, width), up=tensor(rows, width))


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_close(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"], share=0.01)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, rng: np.random.Generator) -> None:
    check(gated(64, 768), decode_rows([3] * rows), rng)


@pytest.mark.parametrize("width", [8, 40, 2304])
def test_any_width(width: int, rng: np.random.Generator) -> None:
    check(gated(9, width), decode_rows([3] * 7), rng)


def test_prompt_rows(rng: np.random.Generator) -> None:
    check(gated(256, 256), prompt_rows([200]), rng)


def test_large_gates_saturate(rng: np.random.Generator) -> None:
    op, rows = gated(8, 8), decode_rows([3])
    gate = np.array([[0.0, 30.0, -30.0, 3e4, -3e4, 1e38, -1e38, 1.0]])
    inputs = {"gate": gate, "up": np.ones((1, 8))}
    assert_close(emulate(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = gated(64, 256), decode_rows([3] * 64)
    check_row_invariance(op, random_inputs(op, rows, rng), rows)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = gated(9, 264), decode_rows([3] * 7)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_a_width_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    op, rows = gated(8, 12), decode_rows([3])
    with pytest.raises(OpError, match=r"12 elements.*multiple of 8"):
        emulate(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    check(gated(16, 264), decode_rows([3] * 9), np.random.default_rng(1), run)
