"""MlaNorms: the bits of RmsNorm's kernel and of LatentWrite's, side by side, and nothing else touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import OpError
from ddtree.graph.ops import MlaNorms
from ddtree.graph.rope import Rope, Yarn
from ddtree.graph.rows import RowTable
from tests.ops.harness import (
    ROW_COUNTS,
    assert_close,
    assert_same_bits,
    cache,
    check_schedules,
    copy_cache,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_inputs,
    reference,
    take,
    tensor,
    tree_rows,
    weight,
)

YARN = Yarn(4.0, 1024, 32.0, 1.0, 1.0, 0.8)


def fused(rows: int, width: int, latent: int, dim: int, *, eps: float = 1e-6, window: int | None = None) -> MlaNorms:
    row = latent + dim
    op = make(
        MlaNorms, x=tensor(rows, width), weight=weight(width), eps=eps, latent=tensor(rows, row), latent_weight=weight(latent),
        cache=cache(row, window=window), rope=Rope("main", dim, 50000.0, "interleaved", YARN), latent_eps=2 * eps,
    )  # fmt: skip
    assert isinstance(op, MlaNorms)
    return op


def check(op: MlaNorms, rows: RowTable, rng: np.random.Generator, run: Any = emulate) -> None:
    """Against the kernels of the two ops, and against the definition."""
    inputs = random_inputs(op, rows, rng)
    norm, write = op.parts()
    made = run(op, {**inputs, "cache": copy_cache(inputs["cache"])}, rows)
    of_norm = {"x": inputs["x"], "weight": inputs["weight"]}
    of_write = {"x": inputs["latent"], "weight": inputs["latent_weight"], "cache": copy_cache(inputs["cache"])}
    assert_same_bits(made["y"], emulate(norm, of_norm, rows)["y"], "y")
    assert_same_bits(made["cache"], emulate(write, of_write, rows)["cache"])
    assert_close(made["y"], reference(norm, of_norm, rows)["y"], ulps=2, share=0.01)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, rng: np.random.Generator) -> None:
    check(fused(64, 128, 128, 32), decode_rows(rng.integers(0, 200, rows)), rng)


@pytest.mark.parametrize(
    ("width", "latent", "dim"), [(1536, 512, 64), (8, 8, 8), (264, 264, 128), (600, 512, 64), (7168, 16, 8)]
)
def test_any_shape(width: int, latent: int, dim: int, rng: np.random.Generator) -> None:
    check(fused(64, width, latent, dim), tree_rows([70, 0, 3, 64], [5, 31, 0, 8], free_slots=True), rng)


def test_committed_rows_go_to_pages_or_to_a_ring(rng: np.random.Generator) -> None:
    check(fused(256, 1536, 128, 32), prompt_rows([100, 0, 1, 64], start=[62, 0, 63, 1]), rng)
    check(fused(512, 64, 8, 8, window=100), prompt_rows([300, 0, 3, 130], start=[60, 0, 127, 1000]), rng)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = fused(64, 1536, 512, 64), decode_rows(rng.integers(0, 200, 64))
    inputs = random_inputs(op, rows, rng)
    together = emulate(op, {**inputs, "cache": copy_cache(inputs["cache"])}, rows)
    for count in ROW_COUNTS:
        keep = rng.permutation(64)[:count]
        few = {**inputs, "x": inputs["x"][keep], "latent": inputs["latent"][keep], "cache": copy_cache(inputs["cache"])}
        alone = emulate(op, few, take(rows, keep))
        at = rows.sequence[keep], rows.node[keep]
        assert_same_bits(alone["y"], together["y"][keep], f"{count} rows")
        assert_same_bits(alone["cache"].scratch[at], together["cache"].scratch[at], f"{count} rows")


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = fused(64, 264, 264, 64), tree_rows([70, 0, 3], [5, 0, 8], free_slots=True)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_rows_of_heads_are_refused() -> None:
    with pytest.raises(OpError, match="rows of one axis"):
        make(
            MlaNorms, x=tensor(8, 2, 16), weight=weight(16), eps=1e-6, latent=tensor(8, 16), latent_weight=weight(8),
            cache=cache(16), rope=Rope("main", 8, 1e4, "half"), latent_eps=1e-6,
        )  # fmt: skip


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    check(fused(64, 264, 40, 16, eps=0.1), tree_rows([70, 0, 3, 64], [5, 31, 0, 8], free_slots=True), rng, run)
    check(fused(256, 40, 40, 16, eps=0.1), prompt_rows([100, 0, 1, 64], start=[62, 0, 63, 1]), rng, run)
