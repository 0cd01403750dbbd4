"""The policy of `budget: auto`: against brute force, by hand, and what it learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.graph.buckets import BUCKETS, bucket, needed_buckets
from ddtree.graph.budget import DECAY, PRIOR, PROBE, Costs, Policy, exponential, folded, running
from ddtree.graph.build import Limits, steps_of
from ddtree.graph.model import load
from ddtree.graph.ops.build_tree import DraftTree, best_first
from tests.graph.spec import MODELS

SLOPE = Costs.of(
    {1: 2.1, 8: 4.6, 16: 7.2, 32: 10.9, 64: 15.5}, 0.5
)  # a sparse model on a fast card: docs/performance.md


def tree(seed: int, depths: int = 7, k: int = 8, budget: int = 63, sharp: float = 1.0) -> DraftTree:
    rng = np.random.default_rng(seed)
    lp = np.log(np.sort(rng.dirichlet(np.full(k + 20, sharp / k), depths), axis=1)[:, ::-1][:, :k] + 1e-9)
    return best_first(1, lp.astype(np.float32), np.tile(np.arange(k, dtype=np.int32), (depths, 1)), budget)


def test_the_exponential_is_right_to_two_ulp() -> None:
    x = np.concatenate([-np.geomspace(1e-12, 690, 4000), np.linspace(-40, 0, 4001)])
    want = np.array([math.exp(v) for v in x])
    assert (np.abs(exponential(x) - want) <= 2 * np.spacing(want)).all()
    assert exponential(np.array([0.0, 1e-7, 5.0, -701.0, -np.inf, np.nan])).tolist() == [1, 1, 1, 0, 0, 0]


def test_sums_of_a_fixed_shape() -> None:
    values = np.random.default_rng(0).random(63)
    assert folded(values) == pytest.approx(values.sum()) and folded(values[:0]) == 0
    np.testing.assert_allclose(running(values), np.cumsum(values), rtol=1e-14)
    assert running(values[:0]).size == 0


def test_costs_lie_on_straight_lines() -> None:
    costs = Costs.of({1: 1.0, 16: 4.0, 64: 10.0}, 0.5)
    assert costs.at(1) == 1 and costs.at(16) == 4 and costs.at(64) == 10
    assert costs.at(4) == pytest.approx(1.6) and costs.at(3) == costs.at(4) and costs.at(33) == costs.at(48) == 8
    assert costs.table.tolist() == [*costs.verify, 0.5, *(1 / (ms + 0.5) for ms in costs.verify)]


def brute_force(costs: Costs, trees: dict[int, DraftTree]) -> tuple[float, float]:
    """Best tokens per millisecond, and least loss in tokens, over every way to give each slot the first nodes of its tree."""
    best, least = 0.0, math.inf
    sizes = [range(len(t)) for t in trees.values()]
    sums = [np.concatenate([[0], np.cumsum(np.exp(t.score[1:]))]) for t in trees.values()]
    n, plain = len(trees), costs.at(len(trees)) / len(trees)
    for pick in np.ndindex(*(len(s) for s in sizes)):
        rows = n + sum(pick)
        if rows <= 64:
            tokens, ms = n + sum(s[i] for s, i in zip(sums, pick, strict=True)), costs.at(rows) + costs.draft
            best, least = max(best, tokens / ms), min(least, ms / plain - tokens)
    return best, least


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 2),
    st.floats(0.05, 4),
    st.lists(st.floats(0, 3), min_size=10, max_size=10),
    st.floats(0.01, 5),
)
def test_no_size_and_no_division_is_better(seed: int, n: int, sharp: float, steps: list[float], draft: float) -> None:
    """Whatever the stairs of the costs look like."""
    costs = Costs(tuple((1 + np.cumsum(steps)).tolist()), draft)
    trees = {s: tree(seed + s, budget=63 if n == 1 else 24, sharp=sharp) for s in range(n)}
    choice = Policy(costs, n, 7).choose(trees)
    best, least = brute_force(costs, trees)
    probability = [np.exp(t.score[1 : choice.sizes[s] + 1]).sum() for s, t in trees.items()]
    assert choice.expected == pytest.approx(n + sum(probability))
    assert choice.rows == n + sum(choice.sizes.values()) and choice.ms == costs.at(choice.rows) + costs.draft
    if best * choice.plain > n * (1 + 1e-9):
        assert choice.expected / choice.ms == pytest.approx(best)
    elif best * choice.plain < n * (1 - 1e-9):
        assert choice.ms / choice.plain * n - choice.expected == pytest.approx(least)


def test_a_cheap_step_behind_a_dear_one_is_found() -> None:
    """The rate falls from 4 rows to 6 and 8, and is best at 64: who stops at the first fall never gets there."""
    dear = Costs((1.0, 1.2, *[4.0] * 8), 0.1)
    flat = best_first(1, np.full((7, 8), -0.4, np.float32), np.tile(np.arange(8, dtype=np.int32), (7, 1)), 63)
    policy = Policy(dear, 1, 7)
    rates = [policy.choose({0: flat.first(n)}).expected for n in (4, 6, 8, 64)]
    assert rates[0] / 1.3 > rates[1] / 4.1 and rates[3] / 4.1 > rates[0] / 1.3
    assert policy.choose({0: flat}).rows == 64


def test_sequences_share_by_probability_and_keep_their_roots() -> None:
    sure, lost = tree(1, sharp=0.05), tree(2, sharp=50.0)
    choice = Policy(SLOPE, 8, 7).choose({2: lost, 5: sure, 7: lost})
    assert choice.sizes[5] > choice.sizes[2] and choice.sizes[2] == choice.sizes[7]
    assert choice.rows == 3 + sum(choice.sizes.values()) <= 64
    everything = Policy(Costs((1.0,) * 10, 0.1), 8, 7).choose(dict.fromkeys(range(8), tree(3)))
    assert everything.rows == 64 and sorted(everything.sizes.values()) == [7] * 8


def test_equal_nodes_go_to_the_earlier_slot() -> None:
    same = best_first(1, np.full((1, 8), -1, np.float32), np.arange(8, dtype=np.int32)[None], 8)
    costs = Costs((1.0, 1.0, *[50.0] * 8), 0.1)
    assert Policy(costs, 4, 1).choose({3: same, 1: same, 0: same}).sizes == {3: 1, 1: 0, 0: 0}


def test_a_tree_of_its_root_alone() -> None:
    choice = Policy(SLOPE, 1, 7).choose({0: tree(0, budget=0)})
    assert choice.sizes == {0: 0} and choice.rows == 1 and choice.expected == 1


def chain(p: float, depths: int = 4) -> DraftTree:
    return best_first(
        0, np.log(np.full((depths, 1), p, np.float32)), np.arange(10, 10 + depths, dtype=np.int32)[:, None], depths
    )


def test_calibration_is_accepted_over_expected() -> None:
    policy = Policy(Costs((1.0,) * 10, 0.1), 2, 4)
    policy.choose({1: chain(0.5)})
    policy.settle(policy.plain([1]), {1: [10, 11, 77]})
    half = float(np.exp(np.log(np.float32(0.5))))
    assert policy.hits[1].tolist() == [1, 1, 0, 0] and policy.mass[1] == pytest.approx([half] * 3 + [0])
    up, down = (PRIOR + 1) / (PRIOR + 0.5), PRIOR / (PRIOR + 0.5)
    assert policy.factors(1) == pytest.approx([1, up, up**2, up**2 * down, up**2 * down])
    assert not policy.hits[0].any() and policy.walk.tolist() == [-1, -1]
    policy.choose({1: chain(0.5)})
    policy.settle(policy.plain([1]), {1: [77]})
    assert policy.hits[1, 0] == pytest.approx(DECAY) and policy.mass[1, 0] == pytest.approx(0.5 + DECAY / 2)


def test_a_tree_is_judged_by_later_rounds() -> None:
    """A probe that verified its root alone learns from the tokens of the rounds after it."""
    policy = Policy(SLOPE, 1, 4)
    choice = policy.choose({0: chain(0.01)})
    assert choice.sizes == {0: 0}
    for token, walk in ((10, 1), (11, 2), (12, 3), (13, 4), (14, -1), (15, -1)):
        policy.settle(policy.plain([0]), {0: [token]})
        assert policy.walk[0] == walk
    assert policy.hits[0].tolist() == [1, 1, 1, 1]


def test_a_drafter_that_is_sure_and_wrong_is_believed_less_and_less() -> None:
    policy, sizes = Policy(SLOPE, 1, 7), []
    wrong = best_first(
        0, np.full((7, 3), np.log([0.95, 0.03, 0.01]), np.float32), np.tile([1, 2, 3], (7, 1)).astype(np.int32), 63
    )
    while policy.drafts:
        choice = policy.choose({0: wrong})
        policy.settle(choice, {0: [99]})
        sizes.append(choice.sizes[0])
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 7 and len(sizes) <= 2
    policy.join(0)
    assert policy.drafts and policy.choose({0: wrong}).sizes[0] == 7  # another text: another chance


def test_drafting_stops_probes_and_resumes() -> None:
    policy, good, drafted = Policy(SLOPE, 1, 4), chain(0.9), list[bool]()

    def play(count: int, tokens: list[int]) -> None:
        for _ in range(count):
            choice = policy.choose({0: good}) if policy.drafts else policy.plain([0])
            drafted.append(choice.draft)
            policy.settle(choice, {0: tokens[: choice.sizes[0] + 1] if choice.draft else [99]})

    play(30, [10, 11, 12, 13, 14])
    assert all(drafted) and policy.lost == 0
    drafted.clear()
    play(3 * PROBE, [99])
    stop = drafted.index(False)
    assert stop <= 3 and [i - stop for i, d in enumerate(drafted) if d and i > stop] == [PROBE - 1, 2 * PROBE - 1]
    drafted.clear()
    play(40, [10, 11, 12, 13, 14])
    assert drafted.index(True) < PROBE and all(drafted[PROBE:]) and policy.lost == 0


def test_a_loss_is_counted_in_rounds_without_a_draft() -> None:
    policy = Policy(Costs((2.0,) * 10, 1.0), 4, 4)
    choice = policy.choose({0: chain(0.5), 3: chain(0.5)})
    policy.settle(choice, {0: [99], 3: [10, 99]})  # 3 ms against 2 ms; 3 tokens of 2 sequences are 1.5 rounds' worth
    assert policy.lost == 0
    policy.settle(choice, {0: [99], 3: [99]})
    assert policy.lost == 0.5


@pytest.mark.parametrize(
    ("settings_", "nodes", "width", "buckets", "steps"),
    [
        (("tree.budget=auto",), 64, 63, list(BUCKETS), 6),
        (("tree.budget=auto", "tree.width=4"), 64, 4, list(BUCKETS), 6),
        (("tree.budget=auto", "decode.loop=[verify, accept, commit]"), 1, 63, [1], 3),
        (("tree.budget=15",), 16, 15, [16], 4),
        (("tree.budget=11",), 12, 11, [12], 4),
    ],
)
def test_what_auto_makes_room_for(
    settings_: tuple[str, ...], nodes: int, width: int, buckets: list[int], steps: int
) -> None:
    model = load(MODELS / "kimi_tiny.yaml", settings_)
    limits = Limits.of(model)
    assert (limits.nodes, limits.width, needed_buckets(limits)) == (nodes, width, buckets)
    assert len(steps_of(model)) == steps and limits.auto == (steps == 6)


def test_buckets_hold_what_they_say() -> None:
    assert [bucket(n) for n in (1, 2, 5, 6, 7, 9, 13, 17, 33, 64)] == [1, 4, 6, 6, 8, 12, 16, 24, 48, 64]
