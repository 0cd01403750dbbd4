"""The order of sums: BF16 rounding hides most differences of FP32 sums, so here FP32 results are compared.

A product's sums may depend on the weight's shape alone: not on the row capacity, the target's launch or the company.
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.ops import Linear
from ddtree.templates.target import TARGETS
from tests.ops.harness import (
    assert_same_bits,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    take,
    tensor,
    weight,
    with_rows,
)

CAPACITIES = (1, 4, 8, 16, 33, 64)


@pytest.mark.parametrize(("out", "inner"), [(24, 504), (576, 2048), (128, 1024)])
def test_a_product_is_the_same_number_in_every_launch(out: int, inner: int) -> None:
    op = make(Linear, x=tensor(64, inner), weight=weight(out, inner), dtype="fp32")
    rows = decode_rows([5] * 64)
    inputs = random_inputs(op, rows, np.random.default_rng(out))
    whole = emulate(op, inputs, rows)["y"]
    for target in TARGETS:
        for capacity in CAPACITIES:
            keep = np.random.default_rng(capacity).permutation(64)[:capacity]
            made = emulate(with_rows(op, capacity), inputs | {"x": inputs["x"][keep]}, take(rows, keep), target=target)
            assert_same_bits(made["y"], whole[keep], f"{capacity} rows on {target}")


def test_prompt_rows_alone_and_together() -> None:
    op = make(Linear, x=tensor(40, 1024), weight=weight(64, 1024), dtype="fp32")
    rows = prompt_rows([40])
    inputs = random_inputs(op, rows, np.random.default_rng(3))
    whole = emulate(op, inputs, rows)["y"]
    for capacity, count in ((40, 3), (8, 8), (1, 1)):
        few = prompt_rows([count])
        made = emulate(with_rows(op, capacity), inputs | {"x": inputs["x"][:count]}, few)["y"]
        assert_same_bits(made, whole[:count], f"{count} prompt rows")
