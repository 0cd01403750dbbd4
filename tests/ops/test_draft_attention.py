"""DraftAttention: window and block edges, grouped heads, paged and ring caches, any company of other sequences.

Tolerance: see assert_attention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from ddtree.graph.numerics import round_bf16
from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import DraftAttention
from ddtree.graph.rows import RowTable
from ddtree.templates.target import SHARED_LIMIT, TARGETS
from tests.ops.attention import assert_attention, attend
from tests.ops.harness import (
    SCHEDULES,
    assert_same_bits,
    cache,
    check_schedules,
    emulate,
    make,
    random_inputs,
    reference,
    rendered,
    take,
    tensor,
    tree_rows,
    with_rows,
)

BLOCK = 8
TWO_SMS = dataclasses.replace(TARGETS["compute_120f"], sms=2)


def attention(
    rows: int,
    heads: int = 8,
    kv_heads: int = 2,
    dim: int = 32,
    *,
    window: int = 0,
    causal: bool = False,
    context: int = 4096,
) -> Op:
    """kimi-tiny's shape unless told otherwise; a windowed layer keeps its window alone."""
    kept = cache(kv_heads, dim, window=window or None, context=context)
    return make(
        DraftAttention, q=tensor(rows, heads, dim), k=tensor(rows, kv_heads, dim), v=tensor(rows, kv_heads, dim),
        keys=kept, values=kept, window=window, causal=causal,
    )  # fmt: skip


def blocks(committed: Sequence[int], block: int = BLOCK) -> RowTable:
    """A block of rows behind each context; none where `committed` is negative."""
    rows = tree_rows([max(c, 0) for c in committed], [block if c >= 0 else 0 for c in committed], chain=True)
    return dataclasses.replace(rows, tree=False, parent=np.full_like(rows.parent, -1), node=np.zeros_like(rows.node))


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = random_inputs(op, rows, rng)
    assert_attention(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 5, 64, 256])
def test_any_context(window: int, causal: bool, rng: np.random.Generator) -> None:
    for committed in (0, 1, 63, 64, 65, 300):
        check(attention(16, window=window, causal=causal), blocks([committed]), rng)


@pytest.mark.parametrize("window", [64, 70])
def test_the_edges_of_a_window(window: int, rng: np.random.Generator) -> None:
    for committed in (window - BLOCK, window - 2, window - 1, window, window + 1, 128, 129, 191, 1000):
        check(attention(8, window=window), blocks([committed]), rng)


def test_a_cache_that_keeps_more_than_the_window(rng: np.random.Generator) -> None:
    op = attention(8, window=100)
    wide = dataclasses.replace(op.keys, window=200)
    op = dataclasses.replace(op, keys=wide, values=dataclasses.replace(wide, name="values"))
    for committed in (99, 190, 700):
        check(op, blocks([committed]), rng)
    paged = dataclasses.replace(
        op, keys=dataclasses.replace(wide, window=None), values=dataclasses.replace(op.values, window=None)
    )
    check(paged, blocks([700]), rng)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(4, 4, 16), (10, 2, 80), (8, 1, 128), (12, 4, 64), (64, 1, 32), (6, 2, 256)]
)
def test_any_number_of_heads(heads: int, kv_heads: int, dim: int, rng: np.random.Generator) -> None:
    check(attention(32, heads, kv_heads, dim), blocks([70, 3]), rng)


@pytest.mark.parametrize("block", [1, 2, 16, 40, 64])
def test_any_size_of_block(block: int, rng: np.random.Generator) -> None:
    for causal in (False, True):
        check(attention(64, causal=causal, window=33), blocks([90], block), rng)


@pytest.mark.parametrize("window", [0, 2048])
def test_the_shape_of_a_large_model(window: int, rng: np.random.Generator) -> None:
    check(attention(16, 8, 1, 128, window=window), blocks([2500, 40]), rng)


def test_more_work_than_blocks(rng: np.random.Generator) -> None:
    check(attention(64), blocks(list(rng.integers(0, 700, 64)), block=1), rng)


def test_no_rows(rng: np.random.Generator) -> None:
    op, rows = attention(8), blocks([-1])
    assert emulate(op, random_inputs(op, rows, rng), rows)["y"].shape[0] == 0


def check_company(
    op: Op, rows: RowTable, picks: Sequence[Sequence[int]], rng: np.random.Generator, run=emulate
) -> None:
    """The blocks of the sequences `picks`, alone and in any order, have the bits that they have together, and so have
    their partial results in fp32."""
    inputs = random_inputs(op, rows, rng)
    together = attend(run, op, inputs, rows)
    for pick in picks:
        keep = np.concatenate([rows.of(s) for s in pick])
        few = inputs | {name: inputs[name][keep] for name in ("q", "k", "v")}
        for step in (op, with_rows(op, len(keep))):
            for name, made in attend(run, step, few, take(rows, keep)).items():
                assert_same_bits(made, together[name][keep], f"{name} of sequences {pick}")


@pytest.mark.parametrize("window", [0, 256])
def test_a_block_does_not_depend_on_its_company(window: int, rng: np.random.Generator) -> None:
    rows = blocks([300, 5, -1, 64, 0, 1200, 63, 299, 30])
    picks = [[0], [5], [8, 3], [1, 5, 0], list(rng.permutation([0, 1, 3, 4, 5, 6, 7, 8]))]
    check_company(attention(64, window=window), rows, picks, rng)


def test_a_block_does_not_depend_on_the_launch(rng: np.random.Generator) -> None:
    op, rows = attention(16), blocks([300, 70])
    inputs = random_inputs(op, rows, rng)
    want = attend(emulate, op, inputs, rows)
    for other in ({"target": "sm_90a"}, {"target": TWO_SMS}, {"tuning": {"blocks_per_sm": 1}}, {"tree": True}):
        for name, made in attend(emulate, op, inputs, rows, **other).items():
            assert_same_bits(made, want[name], f"{name} with {other}")


def check_items_in_turn(rng: np.random.Generator, run=emulate) -> None:
    """Two blocks take eight items of one, two or three tiles each, under the watch for races."""
    op, rows = attention(16, 4, 2, 16, context=128), blocks([0, 20, 33, 100], 2)
    step = partial(run, target=TWO_SMS, tuning={"blocks_per_sm": 1}, mode="check")
    check(op, rows, rng, step)


def test_a_block_takes_items_in_turn(rng: np.random.Generator) -> None:
    check_items_in_turn(rng)


def far_apart(op: Op, rows: RowTable, rng: np.random.Generator) -> dict[str, Any]:
    """Queries and keys whose scores, in base 2, are all below -200."""
    inputs = random_inputs(op, rows, rng)
    inputs["q"], inputs["k"] = round_bf16(inputs["q"] / 8 + 8), round_bf16(inputs["k"] / 8 - 4)
    inputs["keys"].rows = round_bf16(inputs["keys"].rows / 8 - 4)
    return inputs


def test_scores_far_below_zero(rng: np.random.Generator) -> None:
    for window in (0, 64):
        op, rows = attention(16, window=window, context=1024), blocks([300, 0])
        inputs = far_apart(op, rows, rng)
        made = attend(emulate, op, inputs, rows)
        assert made["stats"][:, 0, :, 0].max() < -200
        assert_attention(made["y"], reference(op, inputs, rows)["y"])


@pytest.mark.parametrize("window", [0, 64])
def test_every_schedule(window: int, rng: np.random.Generator) -> None:
    op, rows = attention(16, window=window, context=512), blocks([150, 33])
    check_schedules(op, random_inputs(op, rows, rng), rows)


def test_shared_memory_of_large_models() -> None:
    for dim in (64, 128, 256):
        tile = rendered(attention(512, 64, 8, dim, context=262144), tree=False)[0].tile
        assert tile.smem <= SHARED_LIMIT, tile.name


def test_what_the_kernel_refuses() -> None:
    with pytest.raises(OpError, match=r"whole 16 elements.*found 40, 4"):
        rendered(attention(8, dim=40), tree=False)
    with pytest.raises(OpError, match="at most 64 of them on a key head, found 32, 128"):
        rendered(attention(8, 128, 1), tree=False)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    for window, causal, schedule in ((0, False, SCHEDULES[0]), (64, True, SCHEDULES[1])):
        op, step = attention(24, window=window, causal=causal), partial(run, schedule=schedule)
        check_company(op, blocks([300, -1, 5, 130]), [[3], [2, 0]], rng, step)
        check(op, blocks([300, 64, 31]), rng, step)
    check(attention(64, 6, 2, 16), blocks([40], 40), rng, run)
    check_items_in_turn(rng, run)
