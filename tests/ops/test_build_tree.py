"""BuildTree: bit for bit the trees of a plain host oracle, which shares no code with the op's reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import OpError
from ddtree.graph.ops import BuildTree
from ddtree.graph.rows import RowTable
from tests.ops.harness import assert_same_bits, check_schedules, emulate, make, prompt_rows, reference, tensor

FIELDS = ("node_token", "node_parent", "node_depth", "node_score", "count")


def trees(sequences: int, depths: int, k: int, nodes: int) -> Any:
    slots = (sequences * depths, k)
    return make(
        BuildTree,
        anchor=tensor(sequences, dtype="int32", domain="sequences"),
        budget=tensor(sequences, dtype="int32", domain="sequences"),
        log_prob=tensor(*slots, dtype="fp32", domain="wanted"),
        token=tensor(*slots, dtype="int32", domain="wanted"),
        depths=depths,
        nodes=nodes,
    )


def drafted(sequences: int, depths: int, absent: Sequence[int] = ()) -> RowTable:
    """A block of 1 + depths rows for every sequence but the absent ones; all its rows but the first are wanted."""
    lengths = [0 if s in absent else depths + 1 for s in range(sequences)]
    rows = prompt_rows(lengths)
    return dataclasses.replace(rows, wanted=np.flatnonzero(rows.position > 0).astype(np.int32))


def random_candidates(rng: np.random.Generator, op: Any, kind: str) -> dict[str, np.ndarray]:
    """Log-probabilities by falling value; `kind` says how often scores tie."""
    sequences, (slots, k) = op.anchor.shape[0], op.log_prob.shape
    logits = rng.standard_normal((slots, k + 3)) * rng.uniform(0.1, 6, (slots, 1))
    if kind == "flat":
        logits[:] = 0
    lp = -np.sort(-(logits - np.log(np.exp(logits).sum(1, keepdims=True))), axis=1)[:, :k]
    if kind == "quantised":
        lp = np.round(lp * 4) / 4
    if kind == "wide":  # of such different size that fp64 sums round
        lp = -np.sort(10 ** rng.uniform(-14, 1, lp.shape), axis=1)
    if kind == "zero":
        lp[:] = 0
    return {
        "anchor": rng.integers(0, 5000, sequences).astype(np.int32),
        "budget": rng.integers(-1, op.nodes + 2, sequences).astype(np.int32),
        "log_prob": lp.astype(np.float32),
        "token": rng.permuted(np.tile(np.arange(max(k, 200)), (slots, 1)), axis=1)[:, :k].astype(np.int32),
    }


def oracle_tree(lp: np.ndarray, budget: int) -> list[tuple[float, tuple[int, ...]]]:
    """Score and ranks of the nodes below the root: scan all candidates for the best, again and again.

    A prefix is a candidate once its previous sibling (or, for a first child, its parent) is in the tree.
    """
    depths, k = lp.shape
    score: dict[tuple[int, ...], float] = {(): -0.0}  # what leaves every number, -0.0 too, as it is
    chosen: list[tuple[float, tuple[int, ...]]] = []
    candidates: set[tuple[int, ...]] = {(0,)} if depths and k else set()
    while candidates and len(chosen) < budget:
        for ranks in candidates:
            path, last = ranks[:-1], ranks[-1]
            row = [float(x) for x in lp[len(path)]]
            previous = score[(*path, last - 1)] - row[last - 1] if last else score[path]
            score[ranks] = previous + row[last]
        best = min(candidates, key=lambda ranks: (-score[ranks], ranks))
        chosen.append((score[best], best))
        candidates.remove(best)
        path, last = best[:-1], best[-1]
        candidates |= {(*path, last + 1)} if last + 1 < k else set()
        candidates |= {(*best, 0)} if len(best) < depths else set()
    return chosen


def oracle(op: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    sequences, nodes, depths = op.anchor.shape[0], op.nodes, op.depths
    want = {name: np.full((sequences, nodes), -1, np.int32) for name in FIELDS[:3]}
    want |= {"node_score": np.full((sequences, nodes), -np.inf), "count": np.zeros(sequences, np.int32)}
    for s in range(sequences):
        lp, token = (inputs[name][s * depths : (s + 1) * depths] for name in ("log_prob", "token"))
        chosen = oracle_tree(lp, min(int(inputs["budget"][s]), nodes - 1))
        number = {(): 0} | {ranks: i for i, (_, ranks) in enumerate(chosen, 1)}
        want["node_token"][s, 0], want["node_parent"][s, 0] = inputs["anchor"][s], -1
        want["node_depth"][s, 0], want["node_score"][s, 0], want["count"][s] = 0, 0.0, 1 + len(chosen)
        for i, (score, ranks) in enumerate(chosen, 1):
            want["node_token"][s, i] = token[len(ranks) - 1, ranks[-1]]
            want["node_parent"][s, i] = number[ranks[:-1]]
            want["node_depth"][s, i] = len(ranks)
            want["node_score"][s, i] = score
    return want


def check(op: Any, inputs: dict[str, np.ndarray], run: Any = emulate) -> None:
    got, want = run(op, inputs, drafted(len(inputs["anchor"]), op.depths)), oracle(op, inputs)
    for name in FIELDS:
        assert_same_bits(got[name], want[name], name)


# (depths, candidates, nodes): the fixture's and K2.6's blocks, the largest tree, tiny vocabularies that run out
SHAPES = [
    (7, 15, 16),
    (7, 12, 13),
    (15, 63, 64),
    (7, 1, 64),
    (3, 2, 64),
    (4, 3, 64),
    (3, 3, 64),
    (15, 2, 33),
    (1, 63, 64),
]


@pytest.mark.parametrize("kind", ["normal", "quantised", "flat", "zero", "wide"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_five_hundred_trees_equal_the_oracle(shape: tuple[int, int, int], kind: str, rng: np.random.Generator) -> None:
    op = trees(13, *shape)  # 9 shapes x 5 kinds x 13 sequences = 585
    check(op, random_candidates(rng, op, kind))


def test_the_reference_equals_the_oracle(rng: np.random.Generator) -> None:
    for shape in SHAPES:
        op = trees(8, *shape)
        inputs = random_candidates(rng, op, "quantised")
        got, want = reference(op, inputs, drafted(8, op.depths)), oracle(op, inputs)
        for name in FIELDS:
            assert_same_bits(got[name], want[name], name)


GOLDEN = [  # token, depth, parent, score
    (7, 0, -1, 0.0), (11, 1, 0, -0.5), (21, 2, 1, -1.25), (12, 1, 0, -1.25), (31, 3, 2, -1.5), (22, 2, 1, -1.5),
    (31, 3, 5, -1.75), (21, 2, 3, -2.0), (31, 3, 7, -2.25),
]  # fmt: skip


@pytest.mark.parametrize("run", [emulate, reference])
def test_a_tree_worked_out_by_hand(run: Any) -> None:
    inputs = {
        "anchor": np.array([7], np.int32),
        "budget": np.array([8], np.int32),
        "log_prob": np.array([[-0.5, -1.25, -2.5], [-0.75, -1.0, -3.0], [-0.25, -2.0, -4.0]], np.float32),
        "token": np.array([[11, 12, 13], [21, 22, 23], [31, 32, 33]], np.int32),
    }
    got = run(trees(1, 3, 3, 9), inputs, drafted(1, 3))
    made = zip(*(got[f"node_{name}"][0].tolist() for name in ("token", "depth", "parent", "score")), strict=True)
    assert list(made) == GOLDEN


def test_the_tree_holds_the_most_probable_prefixes(rng: np.random.Generator) -> None:
    depths, k, budget = 3, 4, 12
    op = trees(20, depths, k, budget + 1)
    inputs = random_candidates(rng, op, "normal")
    inputs["budget"][:] = budget
    score = emulate(op, inputs, drafted(20, depths))["node_score"]
    for s in range(20):
        lp = inputs["log_prob"][s * depths : (s + 1) * depths].astype(np.float64)
        sums = [lp[0], (lp[0][:, None] + lp[1]).ravel(), (lp[0][:, None, None] + lp[1][:, None] + lp[2]).ravel()]
        best = -np.sort(-np.concatenate(sums))[:budget]
        np.testing.assert_allclose(score[s, 1:], best, rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_broken_drafter_still_gives_the_tree_of_the_reference(bad: float, rng: np.random.Generator) -> None:
    op = trees(6, 7, 15, 16)
    inputs = random_candidates(rng, op, "normal")
    inputs["log_prob"][rng.random(inputs["log_prob"].shape) < 0.3] = bad
    inputs["log_prob"][:7] = bad
    got, want = emulate(op, inputs, drafted(6, 7)), reference(op, inputs, drafted(6, 7))
    for name in FIELDS:
        assert_same_bits(got[name], want[name], name)


def test_a_sequence_does_not_depend_on_the_others(rng: np.random.Generator) -> None:
    op = trees(12, 7, 15, 16)
    inputs = random_candidates(rng, op, "quantised")
    together = emulate(op, inputs, drafted(12, 7))
    for s in range(12):
        part = {name: x[s * 7 : s * 7 + 7] if len(x) == 84 else x[s : s + 1] for name, x in inputs.items()}
        alone = emulate(trees(1, 7, 15, 16), part, drafted(1, 7))
        for name in FIELDS:
            assert_same_bits(alone[name], together[name][s : s + 1], name)


def test_a_sequence_without_rows_gets_no_tree(rng: np.random.Generator) -> None:
    op, rows = trees(5, 7, 15, 16), drafted(5, 7, absent=(0, 3))
    inputs = random_candidates(rng, op, "normal")
    for name in ("log_prob", "token"):
        inputs[name] = inputs[name][:21]
    got, want = emulate(op, inputs, rows), reference(op, inputs, rows)
    assert want["count"][[0, 3]].tolist() == [0, 0] and (want["count"][[1, 2, 4]] >= 1).all()
    for name in FIELDS:
        assert_same_bits(got[name], want[name], name)


def test_sequence_slots_past_the_live_ones_are_left_alone(rng: np.random.Generator) -> None:
    inputs = random_candidates(rng, trees(5, 7, 15, 16), "normal")
    inputs = {name: x[: len(x) * 3 // 5] for name, x in inputs.items()}
    got, want = (run(trees(5, 7, 15, 16), inputs, drafted(3, 7)) for run in (emulate, reference))
    for name in FIELDS:
        assert_same_bits(got[name], want[name], name)


def test_every_schedule(rng: np.random.Generator) -> None:
    op = trees(3, 7, 15, 16)
    check_schedules(op, random_candidates(rng, op, "quantised"), drafted(3, 7))


@pytest.mark.parametrize(("shape", "what"), [((17, 4, 8), "depths, found 17"), ((7, 4, 65), "nodes, found 65")])
def test_more_than_the_kernel_can_hold_is_refused(shape: tuple[int, int, int], what: str, rng: Any) -> None:
    op = trees(1, *shape)
    with pytest.raises(OpError, match=what):
        check(op, random_candidates(rng, op, "normal"))


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    for shape, kinds in (
        ((15, 63, 64), ("quantised", "flat")),
        ((15, 2, 33), ("quantised", "zero")),
        ((3, 3, 64), ("wide",)),
    ):
        for kind in kinds:
            op = trees(8, *shape)
            check(op, random_candidates(rng, op, kind), run)
