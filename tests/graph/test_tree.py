"""The draft tree: the published golden, brute force, and its place in a row table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.graph.ops.build_tree import DraftTree, best_first
from tests.ops.tables import tree_rows

LOG_PROB = np.array([[-0.5, -1.25, -2.5], [-0.75, -1.0, -3.0], [-0.25, -2.0, -4.0]], np.float32)
TOKEN = np.array([[11, 12, 13], [21, 22, 23], [31, 32, 33]], np.int32)


def test_the_published_golden() -> None:
    tree = best_first(7, LOG_PROB, TOKEN, 8)
    assert tree.token.tolist() == [7, 11, 21, 12, 31, 22, 31, 21, 31]
    assert tree.depth.tolist() == [0, 1, 2, 1, 3, 2, 3, 2, 3]
    assert tree.parent.tolist() == [-1, 0, 1, 0, 2, 1, 5, 3, 7]
    assert tree.score.tolist() == [0, -0.5, -1.25, -1.25, -1.5, -1.5, -1.75, -2.0, -2.25]
    rows = [
        "100000000",
        "110000000",
        "111000000",
        "100100000",
        "111010000",
        "110001000",
        "110001100",
        "100100010",
        "100100011",
    ]
    table = tree_rows([5], [9])
    table.parent = tree.parent
    for i, row in enumerate(rows):
        assert table.path(i) == [j for j, seen in enumerate(row) if seen == "1"]


def ranks_of(tree: DraftTree, token: np.ndarray) -> list[tuple[int, ...]]:
    """Each node's ranks along its path."""
    found: list[tuple[int, ...]] = [()]
    for t, parent, depth in zip(tree.token[1:], tree.parent[1:], tree.depth[1:], strict=True):
        found.append((*found[parent], token[depth - 1].tolist().index(t)))
    return found


def brute_force(log_prob: np.ndarray, budget: int) -> list[tuple[int, ...]]:
    """The `budget` most probable prefixes of all, equal ones by rank tuple."""
    depths, k = log_prob.shape
    prefixes = [r for d in range(1, depths + 1) for r in itertools.product(range(k), repeat=d)]
    score = {r: sum(float(log_prob[i, rank]) for i, rank in enumerate(r)) for r in prefixes}
    return sorted(prefixes, key=lambda r: (-score[r], r))[:budget]


@st.composite
def candidates(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Falling log-probabilities in steps of 1/8, so that sums are exact and ties are many; and a budget."""
    depths, k = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    steps = [sorted(draw(st.lists(st.integers(0, 12), min_size=k, max_size=k))) for _ in range(depths)]
    return -np.array(steps, np.float32) / 8, draw(st.integers(0, 63))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(candidates())
def test_best_first_takes_the_most_probable_prefixes(case: tuple[np.ndarray, int]) -> None:
    log_prob, budget = case
    token = np.random.default_rng(0).permutation(1000)[: log_prob.size].reshape(log_prob.shape).astype(np.int32)
    tree = best_first(3, log_prob, token, budget)
    ranks = ranks_of(tree, token)
    assert ranks[1:] == brute_force(log_prob, budget)
    assert all(ranks[p] == r[:-1] and p < i for i, (p, r) in enumerate(zip(tree.parent, ranks, strict=True)) if i)
    assert (np.diff(tree.score) <= 0).all()
    assert all(np.prod([r + 1 for r in path]) <= budget for path in ranks[1:])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 63))
def test_candidates_beyond_the_budget_change_nothing(seed: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    log_prob = np.sort(-rng.exponential(1, (7, 70)), axis=1)[:, ::-1].astype(np.float32)
    token = np.stack([rng.permutation(4096)[:70] for _ in range(7)]).astype(np.int32)
    wide, narrow = (best_first(1, log_prob[:, :k], token[:, :k], budget) for k in (70, budget))
    for name in ("token", "parent", "depth", "score"):
        assert (getattr(wide, name) == getattr(narrow, name)).all()
    assert len(wide) == budget + 1


@pytest.mark.parametrize(("budget", "k", "nodes"), [(0, 3, 1), (7, 1, 4), (63, 3, 40), (2, 3, 3)])
def test_the_tree_ends_at_the_budget_or_with_the_candidates(budget: int, k: int, nodes: int) -> None:
    tree = best_first(7, LOG_PROB[:, :k], TOKEN[:, :k], budget)
    assert len(tree) == nodes
    if k == 1:
        assert tree.parent.tolist() == [-1, 0, 1, 2]


def test_scores_are_sums_in_double_precision() -> None:
    log_prob = np.array([[-0.1, -0.3], [-0.7, -0.9]], np.float32)
    tree = best_first(0, log_prob, np.array([[1, 2], [3, 4]], np.int32), 4)
    a, b, c, d = (float(x) for x in log_prob.ravel())
    assert tree.score.tolist() == [0, a, (a - a) + b, a + c, ((a + c) - c) + d]
    assert tree.score[3] != np.float32(a + c)
