"""MlaQuery: absorbed queries of every head, rotation by each row's own position, generated and prompt rows.

Tolerance: other orders of fp32 sums of standard deviation 1 (`atol`), and cos and sin within 1e-7; either moves few values
over a bf16 rounding boundary (`share`), by one step.
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import MlaQuery
from ddtree.graph.rope import Rope, Yarn
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
    tree_rows,
    weight,
)

ATOL = 4e-6
YARN = Yarn(factor=64.0, original=4096, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=0.5)


def query(
    heads: int,
    nope: int,
    rope: int,
    value: int,
    latent: int,
    rows: int = 64,
    *,
    layout: str = "interleaved",
    domain: str = "rows",
) -> Op:
    rule = Rope("main", rope, 50000.0, layout, YARN)  # type: ignore[arg-type]
    q = tensor(rows, heads, nope + rope, domain=domain)
    return make(MlaQuery, q=q, weight=weight(heads * (nope + value), latent), rope=rule)


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate, **options) -> None:
    inputs = random_inputs(op, rows, rng)
    got, want = run(op, inputs, rows, **options)["y"], reference(op, inputs, rows)["y"]
    assert_close(got, want, atol=ATOL, share=0.01)


def positions(count: int) -> list[int]:
    return [0, 1, 63, 4095, 40_000, *range(7, 2 + count)][:count]


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, tree: bool, rng: np.random.Generator) -> None:
    check(query(8, 32, 32, 32, 128), decode_rows([100 + 7 * r for r in range(rows)]), rng, tree=tree)


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
@pytest.mark.parametrize(
    "shape", [(1, 8, 8, 8, 8), (2, 32, 32, 32, 128), (3, 40, 16, 24, 136), (2, 128, 64, 128, 512)], ids=str
)
def test_any_shape(shape: tuple[int, ...], tree: bool, rng: np.random.Generator) -> None:
    for layout in ("interleaved", "half"):
        check(query(*shape, rows=16, layout=layout), decode_rows([3] * 11), rng, tree=tree)


def test_far_positions(rng: np.random.Generator) -> None:
    check(query(2, 32, 64, 32, 128, rows=8), decode_rows([262_143, 131_072, 99_999]), rng)


def test_positions_of_a_tree_and_of_a_prompt(rng: np.random.Generator) -> None:
    op = query(4, 32, 32, 32, 64, rows=80)
    check(op, tree_rows([5, 900], [9, 20]), rng)
    check(op, prompt_rows([50, 0, 23], start=[64, 0, 7]), rng)


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
def test_a_row_does_not_depend_on_its_company(tree: bool, rng: np.random.Generator) -> None:
    op, rows = query(2, 136, 16, 24, 72), decode_rows([11 * r for r in range(64)])
    check_row_invariance(op, random_inputs(op, rows, rng), rows, tree=tree)


def test_schedules_and_races(rng: np.random.Generator) -> None:
    op, rows = query(2, 128, 16, 32, 72, rows=16), decode_rows([3, 5, 8, 13, 21, 34, 55, 89, 144])
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_rules_of_one_name_make_different_kernels() -> None:
    names = {rendered(query(2, 32, 32, 32, 64, layout=layout), tree=True)[0].name for layout in ("interleaved", "half")}
    assert len(names) == 2


def test_what_the_kernel_refuses() -> None:
    with pytest.raises(OpError, match="multiple of 8"):
        rendered(query(2, 36, 32, 32, 64), tree=True)
    with pytest.raises(OpError, match="wanted"):
        rendered(query(2, 32, 32, 32, 64, domain="wanted"), tree=True)


def catches(run) -> None:
    rng = np.random.default_rng(0)
    check(query(3, 40, 16, 24, 72, rows=40), decode_rows([9 * r for r in range(35)]), rng, run)
    check(
        query(3, 40, 16, 24, 72, rows=40), decode_rows([9 * r for r in range(35)]), rng, run, tree=False
    )  # two groups
    check(query(2, 32, 16, 32, 64, rows=8), tree_rows([40_000], [6]), rng, run)
