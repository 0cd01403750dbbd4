"""MlaTreeAttention: every key that a row may see and no other, a tree row with the bits of plain decoding, any company.

Tolerance: see assert_attention.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest

from ddtree.graph.numerics import round_bf16
from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import MlaTreeAttention
from ddtree.graph.rope import Rope, Yarn
from ddtree.graph.rows import RowTable
from ddtree.templates.target import SHARED_LIMIT, TARGETS
from ddtree.templates.tiles.mla_tree_attention import SPLITS, parts, segments
from tests.ops.attention import assert_attention, attend
from tests.ops.harness import (
    ROW_COUNTS,
    SCHEDULES,
    assert_same_bits,
    cache,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    random_cache,
    random_inputs,
    reference,
    rendered,
    take,
    tensor,
    tree_rows,
    with_rows,
)
from tests.ops.memory import copy_cache


def attention(rows: int, heads: int = 8, latent: int = 128, rope: int = 32, context: int = 1024) -> Op:
    """kimi-tiny's shape unless told otherwise."""
    yarn = Yarn(factor=4.0, original=64, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0)
    return make(
        MlaTreeAttention, q=tensor(rows, heads, latent + rope), cache=cache(latent + rope, context=context),
        rope=Rope("main", rope, 10000.0, "interleaved", yarn, softmax=True), head=rope + 32,
    )  # fmt: skip


def few_blocks(sms: int) -> dict[str, Any]:
    return {"target": dataclasses.replace(TARGETS["compute_120f"], sms=sms), "tuning": {"blocks_per_sm": 1}}


def case(op: Op, rows: RowTable, rng: np.random.Generator) -> dict:
    return random_inputs(op, rows, rng, cache=random_cache(op.cache, rows, rng, written=True))


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = case(op, rows, rng)
    assert_attention(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


@pytest.mark.parametrize("committed", [0, 1, 63, 64, 65, 127, 128, 300])
def test_a_tree_behind_any_context(committed: int, rng: np.random.Generator) -> None:
    check(attention(64), tree_rows([committed], [9], free_slots=True), rng)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_any_number_of_rows(rows: int, rng: np.random.Generator) -> None:
    for capacity in {rows, 64}:
        check(attention(capacity), tree_rows([150], [rows]), rng)


@pytest.mark.parametrize("heads", [1, 2, 12, 16, 64])
def test_any_number_of_heads(heads: int, rng: np.random.Generator) -> None:
    check(attention(8, heads), tree_rows([150, 30], [4, 2]), rng)
    check(attention(8, heads), prompt_rows([4, 2], start=[60, 1]), rng)


def test_the_deepest_tree_crosses_a_cut(rng: np.random.Generator) -> None:
    check(attention(64), tree_rows([100], [64], chain=True), rng)


def test_sequences_of_different_lengths_in_any_order(rng: np.random.Generator) -> None:
    op, rows = attention(32), tree_rows([70, 0, 300, 5, 128, 255], [7, 1, 9, 0, 3, 6], free_slots=True)
    check(op, rows, rng)
    check(op, take(rows, rng.permutation(len(rows))), rng)


def test_more_work_than_blocks(rng: np.random.Generator) -> None:
    check(attention(64, 64), tree_rows([140], [64]), rng)
    check(attention(64), tree_rows([900, 400], [40, 24]), rng)


def check_items_in_turn(rng: np.random.Generator, run=emulate) -> None:
    """A few blocks take units and parts in turn: in teams, or with more units than blocks."""
    rows = tree_rows([700, 330], [14, 3], free_slots=True)
    for blocks in (1, 2, 5):
        check(attention(24), rows, rng, partial(run, **few_blocks(blocks)))
    check(attention(4), tree_rows([300], [3]), rng, partial(run, **few_blocks(2), mode="check"))


def test_a_block_takes_items_in_turn(rng: np.random.Generator) -> None:
    check_items_in_turn(rng)


def check_rising_peaks(rng: np.random.Generator, run=emulate) -> None:
    """Scores whose largest one is passed again and again, in each row at another key, by more than an exponent holds."""
    op, rows = attention(16), tree_rows([400], [16], free_slots=True)
    inputs = case(op, rows, rng)
    inputs["q"] = round_bf16(inputs["q"] * 30)
    assert_attention(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


def test_peaks_that_rise(rng: np.random.Generator) -> None:
    check_rising_peaks(rng)


def test_the_shape_of_a_large_model(rng: np.random.Generator) -> None:
    op = attention(8, latent=512, rope=64)
    check(op, tree_rows([140, 20], [5, 2]), rng)
    check(op, prompt_rows([6], start=[40]), rng)


@pytest.mark.parametrize("committed", [4095, 32767])
def test_longer_segments_far_from_the_start(committed: int, rng: np.random.Generator) -> None:
    check(attention(2, rope=16, context=36000), tree_rows([committed], [2]), rng)


@pytest.mark.parametrize(
    ("lengths", "start"), [([1], [0]), ([33], [0]), ([1, 70, 3], [64, 0, 127]), ([5, 0, 2], [300, 7, 63])]
)
def test_prompt_rows(lengths: list[int], start: list[int], rng: np.random.Generator) -> None:
    check(attention(80), prompt_rows(lengths, start=start), rng)


def test_no_rows(rng: np.random.Generator) -> None:
    for rows in (tree_rows([5], [0]), prompt_rows([0])):
        op = attention(8)
        assert emulate(op, case(op, rows, rng), rows)["y"].shape[0] == 0


def plain_decoding(op: Op, inputs: dict, rows: RowTable, row: int, run) -> dict[str, np.ndarray]:
    """The row as plain decoding of its path would have it: its ancestors committed, itself the root."""
    sequence, path = int(rows.sequence[row]), rows.path(row)
    kept = copy_cache(inputs["cache"])
    kept.commit(rows, sequence, rows.node[path[:-1]])
    committed = rows.committed.copy()
    committed[sequence] += len(path) - 1
    alone = dataclasses.replace(take(rows, [row]) if len(path) == 1 else orphan(rows, row), committed=committed)
    return attend(run, with_rows(op, 1), {"q": inputs["q"][[row]], "cache": kept}, alone)


def orphan(rows: RowTable, row: int) -> RowTable:
    return take(dataclasses.replace(rows, parent=np.full_like(rows.parent, -1)), [row])


def check_plain_decoding(op: Op, rows: RowTable, picks: list[int], rng: np.random.Generator, run=emulate) -> None:
    """y, and before its rounding the partial results, are the same in a shuffled tree and in plain decoding."""
    inputs = case(op, rows, rng)
    tree = attend(run, op, inputs, rows)
    shuffle = rng.permutation(len(rows))
    shuffled = attend(run, op, inputs | {"q": inputs["q"][shuffle]}, take(rows, shuffle))
    for name in tree:
        assert_same_bits(shuffled[name], tree[name][shuffle], f"{name} of a shuffled tree")
    for row in picks:
        for name, alone in plain_decoding(op, inputs, rows, row, run).items():
            assert_same_bits(alone, tree[name][[row]], f"{name} of row {row} in plain decoding")


def deepest(rows: RowTable) -> list[int]:
    """The deepest row of each sequence, and one in the middle."""
    return [int(max(rows.of(s), key=lambda r: rows.position[r])) for s in np.unique(rows.sequence)] + [len(rows) // 2]


@pytest.mark.parametrize("committed", [[1], [30], [60], [120], [127], [128], [250, 0, 97, 126]])
def test_a_tree_row_has_the_bits_of_plain_decoding(committed: list[int], rng: np.random.Generator) -> None:
    for chain in (False, True):
        rows = tree_rows(
            committed, [40 // len(committed)] * len(committed), chain=chain, free_slots=True, seed=len(committed)
        )
        check_plain_decoding(attention(64), rows, deepest(rows), rng)


def part_of(key: int, position: int) -> int:
    """The part in which a row at `position` sees a key: segments before its own, pieces of that one."""
    whole, own = segments(key + 1) - 1, segments(position + 1) - 1
    if whole < own:
        return whole
    begin, length = 0, SPLITS[0][1]
    for end, longer in SPLITS:
        if position < end:
            length = longer
            break
        begin = end
    piece = 64 if length < 1024 else 256
    return own + (key - begin) % length // piece


def check_large_units(rng: np.random.Generator, run=emulate) -> None:
    """Eight head tiles of a block against one."""
    rows = tree_rows([200, 97], [11, 5], free_slots=True)
    check_plain_decoding(attention(24), rows, deepest(rows), rng, partial(run, **few_blocks(2)))


def test_many_rows_that_share_a_block_have_the_bits_of_plain_decoding(rng: np.random.Generator) -> None:
    check_large_units(rng)


def check_stats(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    """log2 of the sum of weights of each row, part and head is that of fp64 up to 1e-5: scores below 20 are sums of some
    hundred products in fp32. Rounding the weights to bf16 would move it by about 2**-9 / sqrt(keys), 1e-4."""
    inputs = case(op, rows, rng)
    stats = attend(run, op, inputs, rows)["stats"].astype(np.float64)
    for r in range(len(rows)):
        keys = inputs["cache"].gather(rows, r).astype(np.float64)
        scores = inputs["q"][r].astype(np.float64) @ keys.T * (op.scale * np.log2(np.e))
        part = np.array([part_of(n, len(keys) - 1) for n in range(len(keys))])
        for at in range(parts(op.cache.context)):
            if at > part[-1]:
                assert not stats[r, at].any(), f"row {r} has no part {at}"
                continue
            want = np.logaddexp2.reduce(scores[:, part == at], axis=1)
            got = stats[r, at, :, 0] + np.log2(stats[r, at, :, 1])
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5, err_msg=f"part {at} of row {r}")


@pytest.mark.parametrize("committed", [3000, 4096 + 460, 32768 + 990])
def test_parts_end_where_the_launch_says(committed: int, rng: np.random.Generator) -> None:
    check_stats(attention(1, 1, rope=16, context=36000), decode_rows([committed]), rng)


def test_sums_of_weights_before_their_rounding(rng: np.random.Generator) -> None:
    check_stats(attention(16), tree_rows([250, 140, 0], [7, 8, 1], free_slots=True), rng)


def far_apart(op: Op, rows: RowTable, rng: np.random.Generator) -> dict[str, Any]:
    """Queries and keys whose scores, in base 2, are all below -200."""
    inputs = case(op, rows, rng)
    kept = inputs["cache"]
    kept.rows, kept.scratch = (round_bf16(x / 8 - 2) for x in (kept.rows, kept.scratch))
    inputs["q"] = round_bf16(inputs["q"] / 8 + 6)
    return inputs


def check_low_scores(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    inputs = far_apart(op, rows, rng)
    made = attend(run, op, inputs, rows)
    assert made["stats"][..., 0].min() < made["stats"][:, 0, :, 0].max() < -200
    assert_attention(made["y"], reference(op, inputs, rows)["y"])


def test_scores_far_below_zero(rng: np.random.Generator) -> None:
    check_low_scores(attention(8), tree_rows([200, 0], [4, 2]), rng)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = attention(64), decode_rows(list(rng.integers(0, 280, 64)))
    check_row_invariance(op, case(op, rows, rng), rows)


def test_a_prompt_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = attention(64), prompt_rows([20, 1, 43], start=[0, 64, 100])
    check_row_invariance(op, case(op, rows, rng), rows)


def test_a_row_does_not_depend_on_the_launch(rng: np.random.Generator) -> None:
    op, rows = attention(16), tree_rows([200, 90], [9, 7])
    inputs = case(op, rows, rng)
    want = emulate(op, inputs, rows)["y"]
    for other in ({"target": "sm_90a"}, {"tuning": {"blocks_per_sm": 2}}):
        assert_same_bits(emulate(op, inputs, rows, **other)["y"], want, f"y with {other}")


@pytest.mark.parametrize(
    "rows", [tree_rows([130, 31], [6, 3]), prompt_rows([3, 5], start=[30, 61])], ids=["tree", "prompt"]
)
def test_every_schedule(rows: RowTable, rng: np.random.Generator) -> None:
    op = attention(12)
    check_schedules(op, case(op, rows, rng), rows)


def test_the_cuts() -> None:
    assert [segments(n) for n in (1, 128, 129, 4096, 4097, 32768, 32769, 262144)] == [1, 1, 2, 32, 33, 144, 145, 368]


@pytest.mark.parametrize("heads", [1, 8, 16, 32, 64])
def test_shared_memory_of_large_models(heads: int) -> None:
    for rows in (1, 2, 3, 64):
        for tree in (True, False):
            tile = rendered(attention(rows, heads, 512, 64, 262144), tree=tree)[0].tile
            assert tile.smem <= SHARED_LIMIT, tile.name


def test_what_the_kernel_refuses() -> None:
    with pytest.raises(OpError, match=r"whole 128 elements.*found 96 and 32"):
        rendered(attention(8, latent=96), tree=True)
    with pytest.raises(OpError, match="at most 64 tree rows, found 65"):
        rendered(attention(65), tree=True)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    op = attention(16)
    for chain, schedule in ((False, SCHEDULES[0]), (True, SCHEDULES[1])):
        rows = tree_rows([250, 140, 0], [7, 8, 1], seed=3, chain=chain)
        step = partial(run, schedule=schedule)
        check_plain_decoding(op, rows, deepest(rows), rng, step)
        check(op, take(rows, rng.permutation(len(rows))), rng, step)
    check(attention(16, 12), tree_rows([40], [3]), rng, run)
    check(op, prompt_rows([7, 3, 2], start=[30, 63, 0]), rng, run)
    check_low_scores(attention(8), tree_rows([200, 0], [4, 2]), rng, run)
    check_stats(op, decode_rows([250]), rng, run)
    check_stats(op, tree_rows([250], [12], chain=True), rng, run)
    check_rising_peaks(rng, run)
    check_items_in_turn(rng, run)
    check_large_units(rng, run)
    check(attention(1, 1, rope=16, context=13120), decode_rows([13000]), rng, run)
    for committed in (3000, 4096 + 460):
        check_stats(attention(1, 1, rope=16, context=36000), decode_rows([committed]), rng, run)
