"""MlaLatent: norm of the latent, rotation of the key, side by side.

Tolerances are those of test_rms_norm.py and test_rotate.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import MlaLatent
from ddtree.graph.rope import Layout, Rope, Yarn
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

YARN = Yarn(4.0, 1024, 32.0, 1.0, 1.0, 0.8)


def latent(rows: int, width: int, dim: int, layout: Layout = "interleaved", eps: float = 1e-6) -> Op:
    rope = Rope("main", dim, 50000.0, layout, YARN)
    return make(MlaLatent, x=tensor(rows, width + dim), weight=weight(width), rope=rope, eps=eps)


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_close(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"], atol=4e-6, share=0.01)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, rng: np.random.Generator) -> None:
    check(latent(64, 128, 32), decode_rows(rng.integers(0, 4096, rows)), rng)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize(("width", "dim"), [(512, 64), (8, 8), (40, 16), (264, 128)])
def test_any_shape(width: int, dim: int, layout: Layout, rng: np.random.Generator) -> None:
    check(latent(16, width, dim, layout), decode_rows(rng.integers(0, 4096, 9)), rng)


def test_prompt_rows(rng: np.random.Generator) -> None:
    check(latent(256, 128, 32), prompt_rows([150, 0, 50], start=[0, 0, 700]), rng)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = latent(64, 512, 64), decode_rows(rng.integers(0, 4096, 64))
    check_row_invariance(op, random_inputs(op, rows, rng), rows)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = latent(8, 264, 64), decode_rows(rng.integers(0, 4096, 5))
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_a_width_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    op, rows = latent(8, 12, 8), decode_rows([3])
    with pytest.raises(OpError, match=r"12 elements.*multiple of 8"):
        emulate(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    check(latent(8, 264, 128, eps=0.1), decode_rows([0, 5, 300, 3000]), rng, run)
