"""LinearGroup: the bits of one Linear for each weight, in one launch for generated rows."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import OpError
from ddtree.graph.ops import LinearGroup
from ddtree.graph.rows import RowTable
from ddtree.templates.render import render
from ddtree.templates.target import TARGETS
from tests.ops.harness import (
    ROW_COUNTS,
    SCHEDULES,
    assert_same_bits,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    tensor,
    tree_rows,
    weight,
)


def group(outs: list[int], inner: int, rows: int = 64, *, dtype: str = "bf16") -> LinearGroup:
    matrices = tuple(weight(out, inner) for out in outs)
    ys = tuple(tensor(rows, out, dtype=dtype) for out in outs)
    op = make(LinearGroup, x=tensor(rows, inner), matrices=matrices, ys=ys, dtype=dtype)
    assert isinstance(op, LinearGroup)
    return op


def check(op: LinearGroup, rows: RowTable, rng: np.random.Generator, run: Any = emulate, **options: Any) -> None:
    """Against a linear of its own for each weight."""
    inputs = random_inputs(op, rows, rng)
    made = run(op, inputs, rows, **options)
    for i, part in enumerate(op.parts()):
        alone = run(part, {"x": inputs["x"], "weight": inputs["matrices"][i]}, rows, **options)["y"]
        assert_same_bits(made[f"ys{i}"], alone, f"weight {i}")


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, tree: bool, rng: np.random.Generator) -> None:
    check(group([128, 40], 256), decode_rows([3] * rows), rng, tree=tree)


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
@pytest.mark.parametrize(
    ("outs", "inner", "dtype"),
    [
        ([8, 8], 8, "bf16"),
        ([24, 8, 136], 776, "bf16"),
        ([256, 64, 64], 256, "fp32"),
        ([1536, 576], 512, "bf16"),
        ([96, 96], 2304, "bf16"),
    ],
)
def test_any_shape(outs: list[int], inner: int, dtype: str, tree: bool, rng: np.random.Generator) -> None:
    for rows in (3, 64):
        check(group(outs, inner, rows, dtype=dtype), tree_rows([9], [rows]), rng, tree=tree)


def test_generated_rows_take_one_launch_and_prompt_rows_one_for_each_weight() -> None:
    for target in TARGETS.values():
        assert len(render(group([96, 40, 40], 128), target, tree=True)) == 1
        assert len(render(group([96, 40, 40], 128), target, tree=False)) == 3


def test_blocks_that_would_not_be_resident_together_do_not_meet() -> None:
    op, few = group([8] * 12, 4096, 24), replace(TARGETS["sm_90a"], sms=16)
    assert [render(op, t, tree=True)[0].tile.constants["split"] for t in (TARGETS["sm_90a"], few)] == [4, 1]


@pytest.mark.parametrize("tree", [True, False], ids=["generated", "prompt"])
def test_a_row_does_not_depend_on_its_company(tree: bool, rng: np.random.Generator) -> None:
    op, rows = group([64, 24], 1024), decode_rows([3] * 64)
    check_row_invariance(op, random_inputs(op, rows, rng), rows, tree=tree)


def test_prompt_rows_past_sixty_four(rng: np.random.Generator) -> None:
    check(group([64, 24], 128, rows=128), prompt_rows([100]), rng, tree=False)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = group([40, 24], 4096, 12), tree_rows([9], [10])
    assert render(op, TARGETS["sm_90a"], tree=True)[0].tile.coresident
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_a_group_of_one_and_a_wrong_shape_are_refused() -> None:
    with pytest.raises(OpError, match="at least two"):
        group([8], 8)
    with pytest.raises(OpError, match="does not fit rows of 8"):
        make(
            LinearGroup, x=tensor(4, 8), matrices=(weight(8, 8), weight(8, 16)), ys=(tensor(4, 8), tensor(4, 8))
        )  # fmt: skip


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    for schedule in SCHEDULES:  # blocks of two weights meet in different orders
        check(group([40, 24], 4096, 12), tree_rows([9], [10]), rng, functools.partial(run, schedule=schedule))
    check(group([128, 40], 256), decode_rows([3] * 40), rng, run)
