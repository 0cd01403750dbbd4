"""Several sequences in a decoder: each gets what it would get alone, bit for bit, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddtree.errors import UsageError
from ddtree.runtime.decoder import Decoder, Round, Sampling
from tests.runtime.decoders import GOLDENS, PLAIN, decode, decoder, prompt, rounds, watch

EIGHT = ("sequences=8", "tree.budget=7")  # eight trees of seven nodes and a root fill the 64 rows of a round
SAMPLED = Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=5)


def assert_same_rounds(got: list[Round], want: list[Round]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.emitted == b.emitted and a.path == b.path
        for name in ("token", "parent", "depth", "score"):
            assert getattr(a.tree, name).tobytes() == getattr(b.tree, name).tobytes()


def together(d: Decoder, prompts: list[list[int]], sampling: list[Sampling], count: int) -> list[list[Round]]:
    """`count` rounds of all prompts at once."""
    slots = [d.start(p, s, 200)[0] for p, s in zip(prompts, sampling, strict=True)]
    done: list[list[Round]] = [[] for _ in slots]
    for _ in range(count):
        made = d.round()
        for mine, slot in zip(done, slots, strict=True):
            mine.append(made[slot])
    for slot in slots:
        d.end(slot)
    return done


@pytest.mark.parametrize("count", [1, 3, 8])
def test_company_changes_no_bit(count: int) -> None:
    d = decoder(*EIGHT)
    prompts = [g["prompt_ids"] for g in GOLDENS[:count]]
    sampling = [Sampling() if i % 2 else SAMPLED for i in range(count)]
    for p, s, mine in zip(prompts, sampling, together(d, prompts, sampling, 3), strict=True):
        assert_same_rounds(mine, rounds(d, p, 1 + sum(len(r.emitted) for r in mine), s)[1])


def test_logits_in_company_are_those_alone() -> None:
    d = decoder(PLAIN, "sequences=8")
    seen = watch(d, "verify")
    try:
        prompts = [g["prompt_ids"] for g in GOLDENS[:3]]
        together(d, prompts, [Sampling()] * 3, 2)
        company = [out["logits"] for _, out, _ in seen.runs]
        seen.runs.clear()
        for i, p in enumerate(prompts):
            together(d, [p], [Sampling()], 2)
            alone = [out["logits"] for _, out, _ in seen.runs]
            seen.runs.clear()
            assert all(a[0].tobytes() == c[i].tobytes() for a, c in zip(alone, company, strict=True))
    finally:
        d.steps = {**d.steps, "verify": seen.step}


def test_joining_and_leaving_between_rounds() -> None:
    d, made = decoder(*EIGHT), dict[int, list[int]]()
    names: dict[int, int] = {}  # slot: prompt

    def join(i: int) -> None:
        slot, token = d.start(GOLDENS[i]["prompt_ids"], Sampling(), 96)
        names[slot], made[i] = i, [token]

    def leave(i: int) -> None:
        slot = next(s for s, who in names.items() if who == i)
        d.end(slot)
        del names[slot]

    def play(count: int) -> None:
        for _ in range(count):
            for slot, done in d.round().items():
                made[names[slot]] += done.emitted

    (
        join(0),
        play(1),
        join(1),
        join(2),
        play(2),
        leave(1),
        play(1),
        join(3),
        join(4),
        play(2),
        leave(0),
        leave(2),
        play(1),
    )
    join(5), play(1), leave(3), leave(4), leave(5)
    assert d.round() == {} and len(made) == 6
    for i, ids in made.items():
        assert len(ids) > 3 and ids == GOLDENS[i]["greedy_ids"][: len(ids)]


def held(d: Decoder) -> list[np.ndarray]:
    """Every cache's memory."""
    return [a for cache in d.caches for a in (cache.rows, cache.scratch)]  # type: ignore[attr-defined]


def test_a_sequence_that_ended_leaves_nothing() -> None:
    d = decoder(*EIGHT)
    slot, _ = d.start(prompt(100), Sampling(), 20)
    d.round()
    assert len(d.pool.free) < d.pool.total and not all(np.isnan(a).all() for a in held(d))
    d.end(slot)
    assert sorted(d.pool.free) == list(range(d.pool.total)) and (d.pool.table == -1).all()
    assert all(np.isnan(a).all() for a in held(d))


def test_only_committed_positions_and_tree_rows_are_in_memory() -> None:
    d = decoder(*EIGHT)
    slot, _ = d.start(prompt(70), Sampling(), 20)
    d.round()
    committed, trees = d.slots[slot].committed, 8
    for cache in d.caches:
        filled = (~np.isnan(cache.rows.reshape(*cache.rows.shape[:2], -1)).any(-1)).sum()  # type: ignore[attr-defined]
        used = (~np.isnan(cache.scratch).reshape(*cache.scratch.shape[:2], -1).any(-1)).sum()  # type: ignore[attr-defined]
        assert filled == committed and used in (0, trees)
    d.end(slot)


def test_any_order_of_free_pages_gives_the_same() -> None:
    d = decoder(*EIGHT)
    want = rounds(d, prompt(130), 8)[1]
    np.random.default_rng(1).shuffle(d.pool.free)
    assert_same_rounds(rounds(d, prompt(130), 8)[1], want)


def test_all_slots_in_use() -> None:
    d = decoder(*EIGHT)
    slots = [d.start([1, 2], Sampling(), 4)[0] for _ in range(8)]
    assert slots == list(range(8))
    with pytest.raises(UsageError, match="all 8 sequence slots are in use"):
        d.start([1], Sampling(), 4)
    d.end(3)
    assert d.start([5], Sampling(), 4)[0] == 3
    for slot in slots:
        d.end(slot)


def test_sequences_share_the_rows_of_a_round() -> None:
    d = decoder("sequences=8", "tree.budget=31")
    sizes = []
    slots: list[int] = []
    for g in GOLDENS:
        slots.append(d.start(g["prompt_ids"], Sampling(), 50)[0])
        sizes.append([len(r.tree) for r in d.round().values()])
    for slot in slots:
        d.end(slot)
    assert sizes == [[32], [32] * 2, [21] * 3, [16] * 4, [12] * 5, [10] * 6, [9] * 7, [8] * 8]


def test_a_tokens_result_does_not_depend_on_the_slot() -> None:
    d: Any = decoder(*EIGHT)
    first = d.start([9, 8, 7], Sampling(), 4)[0]
    assert decode(d, GOLDENS[6]["prompt_ids"], 12)[0] == GOLDENS[6]["greedy_ids"][:12]
    d.end(first)
