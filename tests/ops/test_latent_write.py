"""LatentWrite: the bits of MlaLatent's kernel at the places of CacheWrite, and nothing else touched.

The row itself is compared with the definition, as in test_mla_latent.py, with two bf16 steps (see test_add_rms_norm.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import OpError
from ddtree.graph.ops import LatentWrite
from ddtree.graph.rope import Layout, Rope, Yarn
from ddtree.graph.rows import RowTable
from tests.ops.harness import (
    ROW_COUNTS,
    SCHEDULES,
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


def fused(
    rows: int, latent: int, dim: int, *, layout: Layout = "interleaved", eps: float = 1e-6, window: int | None = None
) -> LatentWrite:
    rope = Rope("main", dim, 50000.0, layout, YARN)
    row = latent + dim
    op = make(
        LatentWrite, x=tensor(rows, row), weight=weight(latent), cache=cache(row, window=window), rope=rope, eps=eps
    )
    assert isinstance(op, LatentWrite)
    return op


def check(op: LatentWrite, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    """Against the kernels of the two ops, all pages and all scratch; the rows against the definition."""
    inputs = random_inputs(op, rows, rng)
    latent, write = op.parts()
    row = emulate(latent, {name: inputs[name] for name in ("x", "weight")}, rows)["y"]
    made = reference(latent, {name: inputs[name] for name in ("x", "weight")}, rows)["y"]
    assert_close(row, made, ulps=2, atol=4e-6, share=0.01)
    want = reference(write, {"x": row, "cache": inputs["cache"]}, rows)["cache"]
    for schedule in SCHEDULES[:2]:  # whichever of two rows for one place came last would stay
        assert_same_bits(run(op, inputs, rows, schedule=schedule)["cache"], want)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_plain_decoding_writes_scratch(rows: int, rng: np.random.Generator) -> None:
    check(fused(64, 128, 32), decode_rows(rng.integers(0, 200, rows)), rng)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize(("latent", "dim"), [(512, 64), (8, 8), (264, 128)])
def test_any_shape(latent: int, dim: int, layout: Layout, rng: np.random.Generator) -> None:
    check(fused(64, latent, dim, layout=layout), tree_rows([70, 0, 3, 64], [5, 31, 0, 8], free_slots=True), rng)


@pytest.mark.parametrize("start", [0, 1, 63, 64, 300])
def test_committed_rows_go_to_pages(start: int, rng: np.random.Generator) -> None:
    check(fused(256, 128, 32), prompt_rows([100, 0, 1, 64], start=[start, 0, 63, 1]), rng)


@pytest.mark.parametrize("length", [1, 128, 129, 300])
def test_a_ring_keeps_the_newest_rows(length: int, rng: np.random.Generator) -> None:
    check(fused(512, 8, 8, window=100), prompt_rows([length, 0, 3, 130], start=[60, 0, 127, 1000]), rng)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = fused(64, 512, 64), decode_rows(rng.integers(0, 200, 64))
    inputs = random_inputs(op, rows, rng)
    together = emulate(op, inputs, rows)["cache"].scratch
    for count in ROW_COUNTS:
        keep = rng.permutation(64)[:count]
        few = {**inputs, "x": inputs["x"][keep], "cache": copy_cache(inputs["cache"])}
        alone = emulate(op, few, take(rows, keep))["cache"].scratch
        at = rows.sequence[keep], rows.node[keep]
        assert_same_bits(alone[at], together[at], f"{count} rows")


@pytest.mark.parametrize("window", [None, 128])
def test_every_schedule(window: int | None, rng: np.random.Generator) -> None:
    op, rows = fused(256, 40, 8, window=window), prompt_rows([150, 0, 3], start=[60, 0, 127])
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_every_schedule_of_tree_rows(rng: np.random.Generator) -> None:
    op, rows = fused(64, 264, 64), tree_rows([70, 0, 3], [5, 0, 8], free_slots=True)
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_a_width_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    op, rows = fused(8, 12, 8), decode_rows([3])
    with pytest.raises(OpError, match=r"12 elements.*multiple of 8"):
        emulate(op, random_inputs(op, rows, rng), rows)


def test_a_cache_of_other_rows_is_refused() -> None:
    rope = Rope("main", 8, 50000.0, "half", YARN)
    with pytest.raises(OpError, match=r"do not fit cache rows of \(24,\)"):
        make(LatentWrite, x=tensor(8, 16), weight=weight(8), cache=cache(24), rope=rope, eps=1e-6)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    check(fused(64, 40, 16, eps=0.1), tree_rows([70, 0, 3, 64], [5, 31, 0, 8], free_slots=True), rng, run)
    check(fused(256, 40, 16, eps=0.1), prompt_rows([100, 0, 1, 64], start=[62, 0, 63, 1]), rng, run)
    check(fused(512, 8, 8, window=100), prompt_rows([300, 0, 3, 130], start=[60, 0, 127, 1000]), rng, run)
