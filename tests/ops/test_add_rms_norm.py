"""AddRmsNorm: the bits of Add and RmsNorm one after the other.

Against the definition the sum is exact. The norm may differ at few values, for the reasons given in test_rms_norm.py: by two
bf16 steps, because one step of the first rounding can be two of the product's.
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import OpError
from ddtree.graph.ops import AddRmsNorm
from ddtree.graph.rows import RowTable
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


def fused(rows: int, width: int, eps: float = 1e-5, domain: str = "rows") -> AddRmsNorm:
    terms = {name: tensor(rows, width, domain=domain) for name in ("a", "b")}
    op = make(AddRmsNorm, **terms, weight=weight(width), eps=eps)
    assert isinstance(op, AddRmsNorm)
    return op


def check(op: AddRmsNorm, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    """Against the definition, and against the kernels of the two ops."""
    inputs = random_inputs(op, rows, rng)
    made, want = run(op, inputs, rows), reference(op, inputs, rows)
    assert_same_bits(made["sum"], want["sum"], "sum")
    assert_close(made["y"], want["y"], ulps=2, share=0.01)
    add, norm = op.parts()
    total = emulate(add, {name: inputs[name] for name in "ab"}, rows)["y"]
    assert_same_bits(made["y"], emulate(norm, {"x": total, "weight": inputs["weight"]}, rows)["y"], "y")


@pytest.mark.parametrize("width", [8, 24, 256, 264, 1536, 7168])
def test_equals_the_two_ops(width: int, rng: np.random.Generator) -> None:
    for count in (1, 33):
        check(fused(40, width), decode_rows([3] * count), rng)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, rng: np.random.Generator) -> None:
    check(fused(64, 256), decode_rows([3] * rows), rng)


def test_wanted_and_prompt_rows(rng: np.random.Generator) -> None:
    check(fused(4, 256, domain="wanted"), prompt_rows([5, 0, 70, 1]), rng)
    check(fused(256, 256), prompt_rows([200]), rng)


@pytest.mark.parametrize("width", [40, 7168])
def test_a_row_does_not_depend_on_its_company(width: int, rng: np.random.Generator) -> None:
    op, rows = fused(64, width), decode_rows([3] * 64)
    check_row_invariance(op, random_inputs(op, rows, rng), rows)


@pytest.mark.parametrize("width", [40, 1536])
def test_every_schedule(width: int, rng: np.random.Generator) -> None:
    op, rows = fused(8, width), decode_rows([3] * 5)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_a_width_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    op, rows = fused(8, 12), decode_rows([3])
    with pytest.raises(OpError, match=r"12 elements.*multiple of 8"):
        emulate(op, random_inputs(op, rows, rng), rows)


def test_rows_of_several_axes_are_refused() -> None:
    with pytest.raises(OpError, match="rows of one axis"):
        make(AddRmsNorm, a=tensor(8, 2, 16), b=tensor(8, 2, 16), weight=weight(16), eps=1e-5)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    for width in (1536, 40):
        check(fused(8, width, 0.1), decode_rows([3] * 5), rng, run)
    check(fused(4, 40, 0.1, "wanted"), prompt_rows([5, 0, 70, 1]), rng, run)
