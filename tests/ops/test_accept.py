"""Accept: equal to a walk that scans the rows for the next child, on random trees of several sequences."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import Accept
from ddtree.graph.rows import MAX_ROWS, RowTable
from tests.ops.harness import (
    assert_same_bits,
    check_schedules,
    decode_rows,
    emulate,
    make,
    reference,
    take,
    tensor,
    tree_rows,
)

FIELDS = ("path", "length", "emitted")


def walk(sequences: int, depths: int = 7, rows: int = MAX_ROWS) -> Op:
    ids, chosen = (tensor(rows, dtype="int32") for _ in range(2))
    return make(Accept, ids=ids, chosen=chosen, depths=depths, sequences=sequences)


def random_rows(rng: np.random.Generator, sequences: int, depths: int) -> RowTable:
    """Trees of at most `depths` below the root, rows of all sequences mixed; some sequences have no rows."""
    nodes = rng.integers(0, MAX_ROWS // sequences + 1, sequences)
    nodes[rng.integers(sequences)] += not nodes.any()
    rows = tree_rows(
        list(rng.integers(0, 300, sequences)), list(nodes), seed=int(rng.integers(1 << 30)), free_slots=True
    )
    shallow = [r for r in range(len(rows)) if len(rows.path(r)) <= depths + 1]
    return take(rows, rng.permutation(shallow))


def random_tokens(rng: np.random.Generator, rows: RowTable, vocab: int) -> tuple[RowTable, dict[str, np.ndarray]]:
    """Tokens that differ between siblings (rows that find none left are dropped with their subtrees), and choices that
    often follow the tree."""
    ids = np.full(len(rows), -1, np.int32)
    for parent in range(-1, len(rows)):
        children = np.flatnonzero(rows.parent == parent)
        if parent < 0:
            ids[children] = rng.integers(0, vocab, len(children))
        else:
            ids[children[:vocab]] = rng.permutation(vocab)[: len(children)]
    kept = [r for r in range(len(rows)) if all(ids[up] >= 0 for up in rows.path(r))]
    rows, ids = take(rows, kept), ids[kept]
    chosen = rng.integers(0, vocab, len(rows)).astype(np.int32)
    for r in range(len(rows)):
        children = np.flatnonzero(rows.parent == r)
        if len(children) and rng.random() < 0.8:
            chosen[r] = ids[rng.choice(children)]
    return rows, {"ids": ids, "chosen": chosen}


def oracle(op: Any, inputs: dict[str, np.ndarray], rows: RowTable) -> dict[str, np.ndarray]:
    """One sequence at a time, one step at a time: which row has this parent and this token? No row below `depths`."""
    want = {name: np.full((op.sequences, op.depths + 1), -1, np.int32) for name in ("path", "emitted")}
    want["length"] = np.zeros(op.sequences, np.int32)
    for s in range(len(rows.committed)):
        here = [r for r in range(len(rows)) if rows.sequence[r] == s and rows.parent[r] == -1]
        while here:
            (row,) = here
            step = want["length"][s]
            want["path"][s, step], want["emitted"][s, step] = rows.node[row], inputs["chosen"][row]
            want["length"][s] = step + 1
            here = [
                r
                for r in range(len(rows))
                if rows.parent[r] == row and inputs["ids"][r] == inputs["chosen"][row] and step < op.depths
            ]  # fmt: skip
    return {name: x[: len(rows.committed)] for name, x in want.items()}


def deep_chains() -> tuple[dict[str, np.ndarray], RowTable]:
    """Two chains of 20 tokens that the target chose from end to end, and a sequence without rows."""
    ids = np.tile(np.arange(20, dtype=np.int32), 2)
    return {"ids": ids, "chosen": ids + np.int32(1)}, tree_rows([9, 5, 3], [20, 20, 0], chain=True)


def check(op: Op, inputs: dict[str, np.ndarray], rows: RowTable, run: Any = emulate) -> dict[str, np.ndarray]:
    got, want = run(op, inputs, rows), oracle(op, inputs, rows)
    for name in FIELDS:
        assert_same_bits(got[name], want[name], name)
    return want


@pytest.mark.parametrize("vocab", [2, 4, 64])
@pytest.mark.parametrize("sequences", [1, 3, 8])
def test_five_hundred_trees_equal_the_oracle(sequences: int, vocab: int, rng: np.random.Generator) -> None:
    walked = []
    for _ in range(-(-180 // sequences)):  # 3 vocabularies x 3 sizes x at least 60 sequences with rows
        rows, inputs = random_tokens(rng, random_rows(rng, sequences, 7), vocab)
        walked += check(walk(sequences), inputs, rows)["length"].tolist()
    assert sum(n > 0 for n in walked) >= 60 and max(walked) >= 4 and (sequences == 1 or 0 in walked)


def test_the_reference_equals_the_oracle(rng: np.random.Generator) -> None:
    for _ in range(20):
        rows, inputs = random_tokens(rng, random_rows(rng, 4, 7), 4)
        got, want = reference(walk(4), inputs, rows), oracle(walk(4), inputs, rows)
        for name in FIELDS:
            assert_same_bits(got[name], want[name], name)


def test_plain_decoding_commits_the_root() -> None:
    inputs = {"ids": np.array([5, 6], np.int32), "chosen": np.array([6, 5], np.int32)}
    want = check(walk(2), inputs, decode_rows([3, 70]))
    assert want["length"].tolist() == [1, 1] and want["emitted"][:, 0].tolist() == [6, 5]


def test_a_chain_is_followed_to_its_end(rng: np.random.Generator) -> None:
    rows = tree_rows([9], [16], chain=True)
    ids = rng.integers(0, 9, 16).astype(np.int32)
    inputs = {"ids": ids, "chosen": np.append(ids[1:], np.int32(3))}
    assert check(walk(1, depths=15), inputs, rows)["length"].tolist() == [16]


def test_a_chain_is_followed_as_deep_as_allowed() -> None:
    for depths in (1, 5, 12):
        want = check(walk(3, depths=depths), *deep_chains())
        assert want["length"].tolist() == [depths + 1, depths + 1, 0]


def test_a_missing_token_ends_the_walk(rng: np.random.Generator) -> None:
    rows = tree_rows([9], [8], chain=True)
    ids = np.arange(8, dtype=np.int32)
    inputs = {"ids": ids, "chosen": np.where(ids == 3, -1, ids + 1).astype(np.int32)}
    assert check(walk(1), inputs, rows)["emitted"].tolist() == [[1, 2, 3, -1, -1, -1, -1, -1]]


def test_a_sequence_does_not_depend_on_the_others(rng: np.random.Generator) -> None:
    rows, inputs = random_tokens(rng, random_rows(rng, 8, 7), 4)
    together = emulate(walk(8), inputs, rows)
    for s in range(8):
        mine = rng.permutation(rows.of(s))
        alone = emulate(walk(8), {name: x[mine] for name, x in inputs.items()}, take(rows, mine))
        for name in FIELDS:
            assert_same_bits(alone[name][s], together[name][s], name)


def test_every_schedule(rng: np.random.Generator) -> None:
    rows, inputs = random_tokens(rng, random_rows(rng, 3, 7), 4)
    check_schedules(walk(3), inputs, rows)


def test_sequence_slots_past_the_live_ones_are_left_alone(rng: np.random.Generator) -> None:
    rows, inputs = random_tokens(rng, random_rows(rng, 3, 7), 4)
    check(walk(8), inputs, dataclasses.replace(rows, _paths={}))


def test_more_rows_than_a_block_has_threads_are_refused() -> None:
    with pytest.raises(OpError, match="at most 64 rows, found room for 65"):
        emulate(walk(1, rows=65), {"ids": np.zeros(1, np.int32), "chosen": np.zeros(1, np.int32)}, decode_rows([3]))


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    for _ in range(6):
        rows, inputs = random_tokens(rng, random_rows(rng, 3, 7), 2)
        check(walk(3), inputs, rows, run)
    chain = {"ids": np.arange(8, dtype=np.int32), "chosen": np.arange(1, 9, dtype=np.int32)}
    check(walk(2), chain, tree_rows([9, 5], [8, 0], chain=True), run)
    check(walk(3), *deep_chains(), run)
