"""Row tables for tests: plain decoding, random trees, prompts; and parts of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ddtree.graph.rows import MAX_ROWS, RowTable

PAGE = 64  # positions
SPARE_PAGES = 3  # physical pages that no sequence holds


def _ints(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.int32)


def page_table(reach: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """A page table in which sequence s can hold `reach[s]` positions, physical pages in random order; -1 elsewhere."""
    need = [-(-n // PAGE) for n in reach]
    table = np.full((len(need), max([*need, 0]) + 1), -1, np.int32)
    free = list(rng.permutation(sum(need) + SPARE_PAGES))
    for s, pages in enumerate(need):
        for slot in range(pages):
            table[s, slot] = free.pop()
    return table


def physical_pages(rows: RowTable) -> int:
    """Pages that a cache needs so that every entry of the table exists, and the spare ones."""
    return int((rows.pages >= 0).sum()) + SPARE_PAGES


def decode_rows(committed: Sequence[int], seed: int = 0) -> RowTable:
    """Plain decoding: one tree row, the root, for each sequence, at its first uncommitted position."""
    return tree_rows(committed, [1] * len(committed), seed=seed)


def tree_rows(
    committed: Sequence[int],
    nodes: Sequence[int],
    *,
    seed: int = 0,
    chain: bool = False,
    free_slots: bool = False,
) -> RowTable:
    """Random trees over several sequences, rows of a sequence side by side, parents before children.

    committed   committed positions of each sequence
    nodes       tree rows of each sequence, root included; 0 for a sequence slot without rows
    chain       every node the only child of the one before
    free_slots  scratch slots in random order instead of 0, 1, 2, ...
    """
    rng = np.random.default_rng(seed)
    sequence: list[int] = []
    position: list[int] = []
    parent: list[int] = []
    node: list[int] = []
    for s, (kept, count) in enumerate(zip(committed, nodes, strict=True)):
        first = len(sequence)
        slots = rng.permutation(MAX_ROWS)[:count] if free_slots else np.arange(count)
        for i in range(count):
            up = -1 if i == 0 else first + (i - 1 if chain else int(rng.integers(i)))
            sequence.append(s)
            parent.append(up)
            position.append(kept if up < 0 else position[up] + 1)
            node.append(int(slots[i]))
    reach = [kept + count for kept, count in zip(committed, nodes, strict=True)]
    return RowTable(
        _ints(sequence),
        _ints(position),
        _ints(parent),
        _ints(node),
        _ints(committed),
        page_table(reach, rng),
        tree=True,
    )


def prompt_rows(lengths: Sequence[int], *, start: Sequence[int] | None = None, seed: int = 0) -> RowTable:
    """Prompt chunks: `lengths[s]` rows of sequence s from position `start[s]` (default 0), which is its committed length.

    Only the last row of each sequence is wanted.
    """
    start = [0] * len(lengths) if start is None else start
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    position = np.concatenate([np.arange(a, a + n) for a, n in zip(start, lengths, strict=True)])
    none = np.full(len(sequence), -1)
    pages = page_table([a + n for a, n in zip(start, lengths, strict=True)], np.random.default_rng(seed))
    last = np.cumsum(lengths)[np.asarray(lengths) > 0] - 1
    return RowTable(
        _ints(sequence), _ints(position), _ints(none), _ints(none), _ints(start), pages, tree=False, wanted=_ints(last)
    )


def take(rows: RowTable, keep: Sequence[int] | np.ndarray) -> RowTable:
    """The rows `keep` of a table, in that order. A kept row's parent must be kept too, or ValueError; so `keep` may
    reorder rows, drop subtrees, or be a path. `wanted` becomes None."""
    keep = np.asarray(keep)
    place = {int(old): new for new, old in enumerate(keep)} | {-1: -1}
    parents = [int(p) for p in rows.parent[keep]]
    if any(p not in place for p in parents):
        raise ValueError("a kept row has lost its parent")
    return dataclasses.replace(
        rows,
        sequence=rows.sequence[keep],
        position=rows.position[keep],
        parent=_ints([place[p] for p in parents]),
        node=rows.node[keep],
        wanted=None,
        source=None if rows.source is None else rows.source[keep],
        _paths={},
    )
