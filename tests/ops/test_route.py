"""Route: the emulated kernels against the reference, ties, NaN and high ids, and a row against itself in company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops.linear import Linear
from ddtree.graph.ops.route import Route
from ddtree.templates.target import TARGETS
from ddtree.templates.tiles import route as tiles
from tests.ops.harness import (
    ROW_COUNTS,
    assert_same_bits,
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
    weight,
    with_rows,
)

TINY = {"hidden": 256, "experts": 16, "top_k": 4}
PRODUCTION = {"hidden": 1792, "experts": 384, "top_k": 8}  # a quarter of the rows' width
RAGGED = {"hidden": 328, "experts": 40, "top_k": 3}
GATE = 2e-5  # sigmoid of sums in another order, and an exponential within 2 ulp


def route(*, hidden: int, experts: int, top_k: int, rows: int = 64, scale: float = 2.827) -> Op:
    return make(
        Route, x=tensor(rows, hidden), weight=weight(experts, hidden), bias=weight(experts, dtype="fp32"),
        top_k=top_k, scale=scale,
    )  # fmt: skip


def inputs(op: Op, live: int, seed: int, **given: Any) -> dict[str, Any]:
    """Random rows; biases that decide about as much as the scores do."""
    rng = np.random.default_rng(seed)
    given.setdefault("bias", (rng.standard_normal(op.weight.shape[0]) * 0.2).astype(np.float32))
    return random_inputs(op, decode_rows([5] * live), rng, **given)


def check(op: Op, given: dict[str, Any], run: Callable[..., Any] = emulate) -> dict[str, np.ndarray]:
    """The kernel's choice is the reference's, and so are the gates. Random scores are no closer than their error."""
    rows = decode_rows([5] * len(given["x"]))
    got, want = run(op, given, rows), reference(op, given, rows)
    np.testing.assert_array_equal(got["ids"], want["ids"])
    np.testing.assert_allclose(got["gates"], want["gates"], rtol=GATE, atol=0)
    return got


@pytest.mark.parametrize("live", ROW_COUNTS)
def test_tiny_shape(live: int) -> None:
    op = route(**TINY)
    check(op, inputs(op, live, seed=live))


@pytest.mark.parametrize(("shape", "live"), [(PRODUCTION, 3), (PRODUCTION, 64), (RAGGED, 9), (RAGGED, 1)])
def test_other_shapes(shape: dict[str, int], live: int) -> None:
    op = route(**shape)
    check(op, inputs(op, live, seed=1))


@pytest.mark.parametrize("count", [70, 130])
def test_prompt_rows(count: int) -> None:
    op, rows = route(**TINY, rows=130), prompt_rows([count])
    given = random_inputs(op, rows, np.random.default_rng(count))
    got, want = emulate(op, given, rows), reference(op, given, rows)
    np.testing.assert_array_equal(got["ids"], want["ids"])
    np.testing.assert_allclose(got["gates"], want["gates"], rtol=GATE)


def test_winners_past_id_255() -> None:
    op = route(**PRODUCTION)
    given = inputs(op, 2, seed=2)
    given["bias"][[255, 256, 383]] += [9, 8, 7]
    assert check(op, given)["ids"][:, :3].tolist() == [[255, 256, 383]] * 2


def test_equal_scores_take_the_lower_id() -> None:
    op = route(**PRODUCTION)
    given = inputs(op, 2, seed=3, bias=np.zeros(384, np.float32))
    given["weight"][:] = given["weight"][7]
    assert check(op, given)["ids"].tolist() == [list(range(8))] * 2
    given["bias"][[300, 33, 65, 1]] = 0.5
    assert check(op, given)["ids"].tolist() == [[1, 33, 65, 300, 0, 2, 3, 4]] * 2


def test_the_bias_selects_and_is_no_part_of_the_gates() -> None:
    op = route(**TINY)
    given = inputs(op, 3, seed=4)
    given["bias"][5] = 1e4
    got = check(op, given)
    assert (got["ids"][:, 0] == 5).all()
    np.testing.assert_allclose(got["gates"].sum(1), 2.827, rtol=1e-5)


def test_scores_of_zero_give_gates_of_zero() -> None:
    op = route(**TINY)
    given = inputs(op, 1, seed=5)
    given["x"][:], given["weight"][:] = 1, -1  # logits of -256: the sigmoid underflows
    assert check(op, given)["gates"].tolist() == [[0.0] * 4]


def test_a_nan_row_chooses_distinct_experts_and_leaves_others_alone() -> None:
    op = route(**TINY)
    clean = inputs(op, 9, seed=6)
    dirty = clean | {"x": clean["x"].copy()}
    dirty["x"][4, 100] = np.nan
    got = check(op, dirty)
    assert got["ids"][4].tolist() == [0, 1, 2, 3] and np.isnan(got["gates"][4]).all()
    others = np.arange(9) != 4
    before = emulate(op, clean, decode_rows([5] * 9))
    for field in ("ids", "gates"):
        assert_same_bits(got[field][others], before[field][others])


def test_experts_with_nan_scores_come_last() -> None:
    op = route(hidden=64, experts=16, top_k=16)
    given = inputs(op, 2, seed=7)
    given["weight"][[3, 11]] = np.nan
    given["bias"][6], given["bias"][9] = -np.inf, np.nan
    rows = decode_rows([5] * 2)
    got = emulate(op, given, rows)["ids"]
    assert got.tolist() == reference(op, given, rows)["ids"].tolist()
    assert got[:, 12:].tolist() == [[3, 6, 11, 9]] * 2  # NaN scores count as -inf; a NaN bias is below even that


@pytest.mark.parametrize("shape", [TINY, PRODUCTION], ids=["tiny", "production"])
def test_a_row_does_not_depend_on_its_company(shape: dict[str, int]) -> None:
    op = route(**shape)
    check_row_invariance(op, inputs(op, 64, seed=8), decode_rows([5] * 64))


def test_schedules_and_races() -> None:
    op = route(hidden=128, experts=40, top_k=3, rows=16)
    check_schedules(op, inputs(op, 11, seed=9), decode_rows([5] * 11))


def test_more_experts_than_the_kernel_holds_are_refused() -> None:
    with pytest.raises(OpError, match="at most 32 of 1024 experts, the op wants 4 of 1032"):
        rendered(route(hidden=64, experts=1032, top_k=4), tree=True)


def test_the_scores_of_prompt_rows_come_from_the_kernel_of_a_linear() -> None:
    """So that a model with such a linear compiles it once; and a step of another capacity shares both kernels."""
    op = route(**TINY)
    linear = make(Linear, x=tensor(64, 256), weight=weight(16, 256), dtype="fp32")
    assert rendered(op, tree=False)[0].source == rendered(linear, tree=False)[0].source
    assert [k.source for k in rendered(with_rows(op, 33), tree=True)] == [k.source for k in rendered(op, tree=True)]


@pytest.mark.parametrize("hidden", [64, 1608])
def test_the_sums_of_the_parts_of_k_are_taken_away(hidden: int) -> None:
    """1608: two parts, the last one short and ragged."""
    op = route(hidden=hidden, experts=40, top_k=3)
    check(op, inputs(op, 33, seed=12))
    made = emulate(op, inputs(op, 33, seed=12), decode_rows([5] * 33), workspaces=("sums",))
    assert (made["workspace:sums"].view(np.uint32) == 0xFFFFFFFF).all()


@pytest.mark.parametrize("name", TARGETS)
def test_all_blocks_of_the_published_model_are_resident(name: str) -> None:
    for rows in (1, 16, 64):
        (tile,) = tiles.tiles(route(hidden=7168, experts=384, top_k=8, rows=rows), TARGETS[name], tree=True, tuning={})
        assert tile.coresident and tile.grid[0] * tile.grid[1] <= (2 if name == "sm_90a" else 1) * TARGETS[name].sms


def catches(run: Callable[..., Any]) -> None:
    op = route(hidden=1608, experts=296, top_k=5, rows=16)
    given = inputs(op, 11, seed=10)
    given["bias"][[255, 256, 295]] += [3, 2, 1]
    given["weight"][[40, 72, 41]] = given["weight"][40]  # ties in one lane and across lanes
    given["bias"][[40, 72, 41]] = 0.9
    check(op, given, run)
    rows = decode_rows([5] * 11)
    made = run(op, given, rows, workspaces=("sums",))
    assert (made["workspace:sums"].view(np.uint32) == 0xFFFFFFFF).all()
    prompt = run(op, given, rows, tree=False)
    np.testing.assert_array_equal(prompt["ids"], made["ids"])
    small = route(hidden=64, experts=296, top_k=5, rows=8)
    zero = inputs(small, 1, seed=11)
    zero["x"][:], zero["weight"][:] = 2, -1
    check(small, zero, run)
    check(small, {**zero, "x": np.full((1, 64), np.nan, np.float32)}, run)
    wide = route(hidden=328, experts=40, top_k=3, rows=32)
    assert_same_bits(
        run(wide, inputs(wide, 32, seed=13), decode_rows([5] * 32), mode="check")["ids"],
        reference(wide, inputs(wide, 32, seed=13), decode_rows([5] * 32))["ids"],
    )
