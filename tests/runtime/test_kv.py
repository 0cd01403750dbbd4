"""Pages and rings of cache rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.errors import UsageError
from ddtree.graph.tensor import Cache
from ddtree.runtime.kv import NumpyCache, PagePool
from tests.ops.tables import prompt_rows, tree_rows


def test_pages_are_mapped_when_a_position_needs_one() -> None:
    pool = PagePool(4, 2, 200)
    for positions, pages in [(0, 0), (1, 1), (64, 1), (65, 2), (65, 2), (128, 2), (200, 4)]:
        pool.reserve(1, positions)
        assert (pool.table[1] >= 0).sum() == pages == 4 - len(pool.free)
    assert (pool.table[0] == -1).all()
    with pytest.raises(UsageError, match="all 4 KV pages of 64 positions are in use; serve fewer or shorter sequences"):
        pool.reserve(0, 1)
    with pytest.raises(UsageError, match="a sequence of 201 positions exceeds the context of 200"):
        pool.reserve(1, 201)
    assert sorted(pool.release(1)) == [0, 1, 2, 3] and pool.release(1) == []
    pool.reserve(0, 65)
    assert (pool.table[0] >= 0).sum() == 2


def test_trimmed_pages_are_free_again() -> None:
    pool = PagePool(4, 2, 256)
    pool.reserve(0, 200)
    kept = pool.table[0, :2].tolist()
    for positions, held in [(256, 4), (129, 3), (128, 2), (65, 2)]:
        pool.trim(0, positions)
        assert pool.held(0) == 64 * held and len(pool.free) == 4 - held
    assert pool.table[0].tolist() == [*kept, -1, -1]
    pool.reserve(1, 128)
    assert sorted({*kept, *pool.table[1, :2].tolist()}) == [0, 1, 2, 3]
    pool.trim(1, 0)
    assert pool.held(1) == 0 and len(pool.free) == 2


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 200)), max_size=40))
def test_a_page_has_one_owner(steps: list[tuple[int, int]]) -> None:
    pool = PagePool(6, 4, 200)
    for sequence, positions in steps:
        try:
            pool.release(sequence) if positions < 0 else pool.reserve(sequence, positions)
        except UsageError:
            assert not pool.free
        taken = pool.table[pool.table >= 0].tolist()
        assert sorted(taken + pool.free) == list(range(6))


def numbered(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.float32)[:, None]


def test_paged_rows_come_back_in_position_order() -> None:
    rows = prompt_rows([0, 130, 70], start=[0, 0, 0])
    cache = NumpyCache(Cache("c", (1,)), 12, 3)
    cache.write(rows, numbered(200))
    rows.committed = np.array([0, 130, 70])
    assert cache.committed(rows, 1, 0).ravel().tolist() == list(range(130))
    assert cache.committed(rows, 2, 60).ravel().tolist() == list(range(190, 200))
    assert cache.gather(rows, 129).ravel().tolist() == list(range(130))
    assert cache.gather(rows, 64).ravel().tolist() == list(range(65))


def test_a_tree_row_sees_the_committed_rows_then_its_path() -> None:
    rows = tree_rows([70], [5], free_slots=True, seed=2)
    cache = NumpyCache(Cache("c", (1,)), 4, 1)
    history = prompt_rows([70])
    history.pages = rows.pages
    cache.write(history, numbered(70))
    cache.write(rows, numbered(5, first=1000))
    for r in range(5):
        assert cache.gather(rows, r).ravel().tolist() == [*range(70), *(1000 + i for i in rows.path(r))]


def test_commit_moves_the_path_behind_the_committed_rows() -> None:
    rows = tree_rows([62], [4], chain=True)
    cache = NumpyCache(Cache("c", (1,)), 5, 1)
    cache.write(rows, numbered(4, first=1000))
    cache.commit(rows, 0, np.array([0, 1, 3]))
    rows.committed = np.array([65])
    assert cache.committed(rows, 0, 62).ravel().tolist() == [1000, 1001, 1003]
    assert np.isnan(cache.committed(rows, 0, 0)[:62]).all()


@pytest.mark.parametrize("length", [1, 64, 127, 128, 129, 300])
def test_a_ring_keeps_the_newest_positions(length: int) -> None:
    cache = NumpyCache(Cache("c", (1,), window=100), 0, 2)
    assert cache.ring == 128
    rows = prompt_rows([0, length])
    cache.write(rows, numbered(length))
    rows.committed = np.array([0, length])
    first = max(0, length - 128)
    assert cache.committed(rows, 1, first).ravel().tolist() == list(range(first, length))
    assert np.isnan(cache.rows[0]).all() and np.isnan(cache.scratch).all()
    cache.poison(1, [])
    assert np.isnan(cache.rows).all()


def test_poison_spares_others() -> None:
    rows = prompt_rows([70, 70])
    cache = NumpyCache(Cache("c", (1,)), 12, 2)
    cache.write(rows, numbered(140))
    cache.poison(0, [int(p) for p in rows.pages[0] if p >= 0])
    rows.committed = np.array([70, 70])
    assert np.isnan(cache.committed(rows, 0, 0)).all()
    assert cache.committed(rows, 1, 0).ravel().tolist() == list(range(70, 140))
