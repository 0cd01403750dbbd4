"""AllReduceAddRmsNorm: the bits of AllReduce, Add and RmsNorm one after another, on every rank, in one shot and in two.

Against the definition the norm may differ at few values; see test_add_rms_norm.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import OpError
from ddtree.graph.ops import AllReduceAddRmsNorm
from ddtree.graph.rows import RowTable
from ddtree.templates.target import TARGETS
from tests.ops.harness import (
    ROW_COUNTS,
    assert_close,
    assert_same_bits,
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
from tests.ops.test_all_reduce import parts


def fused(rows: int, width: int, ranks: int, eps: float = 1e-5, domain: str = "rows") -> Any:
    terms = {name: tensor(rows, width, domain=domain) for name in ("x", "a")}
    return make(AllReduceAddRmsNorm, **terms, weight=weight(width), ranks=ranks, eps=eps)


def inputs_of(op: Any, rows: RowTable, rng: np.random.Generator) -> dict[str, Any]:
    made = random_inputs(op, rows, rng)
    x = [p / 2**10 for p in parts(rng, op.ranks, *made["a"].shape)]
    return made | {"x": x}


def check(op: Any, rows: RowTable, rng: np.random.Generator, run: Any = emulate, **options: Any) -> None:
    """Against the definition, and against the kernels of the three ops."""
    inputs = inputs_of(op, rows, rng)
    made, want = run(op, inputs, rows, **options), reference(op, inputs, rows)
    assert_same_bits(made["sum"], want["sum"], "sum")
    assert_close(made["y"], want["y"], ulps=2, share=0.01)
    reduction, add, norm = op.parts()
    total = emulate(reduction, {"x": inputs["x"]}, rows)["y"]
    both = emulate(add, {"a": inputs["a"], "b": total}, rows)["y"]
    assert_same_bits(made["sum"], both, "sum")
    assert_same_bits(made["y"], emulate(norm, {"x": both, "weight": inputs["weight"]}, rows)["y"], "y")


@pytest.mark.parametrize(("width", "ranks"), [(8, 2), (24, 3), (256, 4), (264, 8), (1536, 2), (7168, 8)])
def test_equals_the_three_ops(width: int, ranks: int, rng: np.random.Generator) -> None:
    check(fused(8, width, ranks), decode_rows([3] * (2 if width > 256 else 7)), rng)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, rng: np.random.Generator) -> None:
    check(fused(64, 256, 2), decode_rows([3] * rows), rng)


def test_wanted_and_prompt_rows_and_few_blocks(rng: np.random.Generator) -> None:
    check(fused(4, 256, 2, domain="wanted"), prompt_rows([5, 0, 70, 1]), rng)
    check(fused(64, 256, 3), prompt_rows([50]), rng, target=replace(TARGETS["compute_120f"], sms=3))


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = fused(64, 40, 3), decode_rows([3] * 64)
    inputs = inputs_of(op, rows, rng)
    check_row_invariance(op, inputs, rows)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = fused(8, 264, 3), decode_rows([3] * 5)
    check_schedules(op, inputs_of(op, rows, rng), rows)


def test_more_ranks_than_a_group_holds_are_refused(rng: np.random.Generator) -> None:
    op, rows = fused(8, 256, 9), decode_rows([3])
    with pytest.raises(OpError, match=r"2\.\.8 ranks, found 9"):
        emulate(op, inputs_of(op, rows, rng), rows)


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    for width in (1536, 40):
        check(fused(8, width, 3, 0.1), decode_rows([3] * 5), rng, run)
    check(fused(8, 7168, 2, 0.1), decode_rows([3] * 2), rng, run)  # a thread has several vectors
