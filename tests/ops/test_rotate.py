"""Rotate: both layouts, YaRN and gain, positions up to the longest context.

Tolerance: kernel and NumPy round every product alike, but their cos and sin differ by up to 1e-7 each. That moves few values
to the next bf16, and a difference of nearly equal products by at most 1e-6 times the inputs, here below 4.
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op
from ddtree.graph.ops import Rotate
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
)

YARN = Yarn(64.0, 4096, 32.0, 1.0, 1.0, 0.8)  # its two mscale values differ, so cos and sin have a gain
LONGEST = 262_144


def rotate(rows: int, heads: int, dim: int, layout: Layout = "interleaved", yarn: Yarn | None = None) -> Op:
    return make(Rotate, x=tensor(rows, heads, dim), rope=Rope("main", dim, 50000.0, layout, yarn))


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_close(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"], atol=4e-6, share=0.005)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, layout: Layout, rng: np.random.Generator) -> None:
    check(rotate(64, 8, 32, layout), decode_rows(rng.integers(0, 4096, rows)), rng)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize(("heads", "dim"), [(1, 2), (3, 6), (1, 128), (8, 64), (5, 24)])
def test_any_shape(heads: int, dim: int, layout: Layout, rng: np.random.Generator) -> None:
    check(rotate(64, heads, dim, layout, YARN), decode_rows(rng.integers(0, 4096, 64)), rng)


@pytest.mark.parametrize("yarn", [None, YARN])
def test_positions_up_to_the_longest_context(yarn: Yarn | None, rng: np.random.Generator) -> None:
    rows = prompt_rows([64], start=[0])
    for first in (0, 105_600, LONGEST // 2 - 32, LONGEST - 64):
        rows.position[:] = first + np.arange(64)
        check(rotate(64, 2, 64, "half", yarn), rows, rng)


def check_turns(run=emulate) -> None:
    """cos and sin are within 1e-7. bf16 hides that, except in a difference of nearly equal ones: at these positions, angles
    in radians of a pair of frequency 1, either cos - sin or cos + sin is below 4e-5, which bf16 holds to 2e-7 or better."""
    rows = decode_rows([26087, 78261, 77906, 130080, 130435, 182254, 182609, 234428])
    angle = rows.position.astype(np.float64)
    want = np.stack([np.cos(angle) - np.sin(angle), np.cos(angle) + np.sin(angle)], axis=1)[:, None]
    assert (abs(want).min(axis=2) < 4e-5).all()
    got = run(rotate(8, 1, 2), {"x": np.ones((8, 1, 2), np.float32)}, rows)["y"]
    np.testing.assert_allclose(got, want, rtol=2**-8, atol=2e-7)


def test_cosine_and_sine_are_exact_to_seven_digits() -> None:
    check_turns()


def test_the_first_position_keeps_its_bits(rng: np.random.Generator) -> None:
    op, rows = rotate(8, 8, 32), decode_rows([0])
    inputs = random_inputs(op, rows, rng)
    assert (emulate(op, inputs, rows)["y"] == inputs["x"]).all()


def test_rules_of_one_name_and_different_numbers_are_different_kernels(rng: np.random.Generator) -> None:
    rows = decode_rows([1000])
    plain, yarn = rotate(8, 1, 32), rotate(8, 1, 32, yarn=YARN)
    check(plain, rows, rng)
    check(yarn, rows, rng)
    inputs = random_inputs(plain, rows, rng)
    assert (emulate(plain, inputs, rows)["y"] != emulate(yarn, inputs, rows)["y"]).any()


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = rotate(64, 8, 32, "half", YARN), decode_rows(rng.integers(0, 4096, 64))
    check_row_invariance(op, random_inputs(op, rows, rng), rows)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = rotate(8, 5, 24), decode_rows(rng.integers(0, 4096, 5))
    check_schedules(op, random_inputs(op, rows, rng), rows)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    rows = decode_rows([0, 5, 300, 131_072, 200_000, LONGEST - 1])
    check(rotate(8, 5, 128, "half", YARN), rows, rng, run)
    check(rotate(8, 2, 16, "interleaved"), rows, rng, run)
    check_turns(run)
