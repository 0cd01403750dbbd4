"""CacheCommit: the accepted path goes from scratch to pages, and nothing else is touched."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import CacheCommit
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import Cache
from tests.ops.harness import (
    assert_same_bits,
    cache,
    check_schedules,
    emulate,
    make,
    random_cache,
    reference,
    tensor,
    tree_rows,
)


def commit(sequences: int, depth: int, c: Cache, layers: int = 3) -> Op:
    return make(
        CacheCommit,
        path=tensor(sequences, depth, dtype="int32", domain="sequences"),
        length=tensor(sequences, dtype="int32", domain="sequences"),
        layers=(c,) * layers,
    )


def case(op: Op, rows: RowTable, rng: np.random.Generator, lengths: list[int]) -> dict:
    """Random paths of those lengths through the scratch slots that the rows use."""
    depth = op.reads()[0].shape[1]
    path = np.full((len(lengths), depth), -1, np.int32)
    for s, n in enumerate(lengths):
        path[s, :n] = rng.permutation(rows.node[rows.of(s)])[:n]
    made = [random_cache(c, rows, rng, written=True) for c in op.caches()]
    return {"path": path, "length": np.array(lengths, np.int32), "layers": made}


def check(op: Op, rows: RowTable, rng: np.random.Generator, lengths: list[int], run=emulate) -> None:
    inputs = case(op, rows, rng, lengths)
    made, want = run(op, inputs, rows), reference(op, inputs, rows)
    assert made.keys() == want.keys() == {f"layers{i}" for i in range(len(op.caches()))}
    for name, cache_ in want.items():
        assert_same_bits(made[name], cache_, name)


@pytest.mark.parametrize("committed", [0, 1, 57, 62, 63, 64, 65, 300])
def test_equals_the_reference(committed: int, rng: np.random.Generator) -> None:
    rows = tree_rows([committed, 5, 0, 64], [12, 0, 1, 9], free_slots=True)
    for width in (8, 160, 576):
        check(commit(8, 8, cache(width)), rows, rng, [8, 0, 1, 5])


def test_a_full_tree_of_one_chain(rng: np.random.Generator) -> None:
    check(commit(1, 64, cache(160)), tree_rows([40], [64], chain=True), rng, [64])


def test_any_number_of_layers(rng: np.random.Generator) -> None:
    rows = tree_rows([5, 64], [4, 3])
    for layers in (1, 2, 61):
        check(commit(2, 4, cache(8), layers), rows, rng, [4, 2])


def test_layers_of_several_kinds_are_refused() -> None:
    with pytest.raises(OpError, match="caches of one kind"):
        make(
            CacheCommit, path=tensor(1, 8, dtype="int32"), length=tensor(1, dtype="int32"), layers=(cache(8), cache(16))
        )  # fmt: skip


def test_a_ring(rng: np.random.Generator) -> None:
    check(commit(2, 8, cache(2, 32, window=128)), tree_rows([125, 3], [12, 9]), rng, [8, 2])


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = commit(8, 8, cache(160)), tree_rows([62, 5, 0, 64], [12, 0, 1, 9])
    check_schedules(op, case(op, rows, rng, [8, 0, 1, 5]), rows)


def catches(run) -> None:
    rng = np.random.default_rng(1)
    rows = tree_rows(
        [62, 5, 0, 64], [64, 0, 1, 9], free_slots=True
    )  # what follows a path names a slot of the neighbour
    check(commit(8, 8, cache(160)), rows, rng, [8, 0, 1, 5], run)
