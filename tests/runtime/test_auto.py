"""`budget: auto` on the shipped model: what it costs under published cost curves, and that it never changes a token."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import numpy as np
import pytest

from ddtree.errors import SpecError
from ddtree.graph.buckets import BUCKETS
from ddtree.graph.budget import PROBE
from ddtree.graph.model import load
from ddtree.runtime.costs import measured, written
from ddtree.runtime.decoder import Sampling
from ddtree.runtime.load import cpu_decoder, folders
from tests.runtime.decoders import GOLDENS, PLAIN, ROOT, decode, decoder, rounds
from tests.runtime.replay import CURVES, Text, auto, cost, plain, text

H200 = "{1: 2.1, 8: 4.6, 16: 7.2, 32: 10.9, 64: 15.5}"
AUTO = f"tree={{budget: auto, costs: {{cpu: {{verify: {H200}, draft: 0.5}}}}}}"
WILD = Sampling(temperature=3.0, seed=1)  # text that no drafter foresees


@cache
def goldens() -> list[Text]:
    return [text(g["prompt_ids"], 96) for g in GOLDENS]


@cache
def unforeseen() -> Text:
    return text(GOLDENS[0]["prompt_ids"], 512, WILD)


@pytest.mark.parametrize("curve", CURVES)
def test_auto_is_as_fast_as_the_best_fixed_budget(curve: str) -> None:
    costs = CURVES[curve]
    fixed = {n: sum(cost(t, costs, n) for t in goldens()) for n in (*range(1, 16), 23, 31, 47, 63)}
    fixed[0] = sum(plain(t, costs) for t in goldens())
    mine = sum(auto(t, costs)[0] for t in goldens())
    assert mine <= 1.03 * min(fixed.values()), f"auto {mine:.0f} ms, fixed {fixed}"
    assert min(fixed, key=fixed.__getitem__) > 0  # drafting pays on these texts


@pytest.mark.parametrize("curve", CURVES)
def test_where_drafts_fail_auto_costs_little_more_than_none(curve: str) -> None:
    costs = CURVES[curve]
    joined = reduce(lambda a, b: b.after(a), goldens())
    for failing in (unforeseen(), joined.wrong()):
        mine, made = auto(failing, costs)
        assert mine <= 1.03 * plain(failing, costs), f"{mine:.0f} ms, {plain(failing, costs):.0f} ms without drafts"
        assert sum(c.probe for c in made) >= failing.tokens // (PROBE + 4) - 4  # it never stops trying


def test_drafting_resumes_where_it_pays_again() -> None:
    """After a stretch that cannot be foreseen, text that can is decoded nearly as fast as from the start."""
    costs, easy = CURVES["H200"], max(goldens(), key=lambda t: plain(t, CURVES["H200"]) / auto(t, CURVES["H200"])[0])
    hard = unforeseen()
    extra = auto(easy.after(hard), costs)[0] - auto(hard, costs)[0]
    assert extra < auto(easy, costs)[0] + (PROBE + 8) * costs.at(1) < plain(easy, costs)


def test_a_replay_is_what_the_decoder_does() -> None:
    """The choices of the replay, and the tokens of each round, are those of decoding."""
    d, replayed = decoder(AUTO), goldens()[1]
    _, done = rounds(d, GOLDENS[1]["prompt_ids"], 97)
    _, made = auto(replayed, CURVES["H200"])
    assert len({c.draft for c in made}) == 2 and len({c.rows for c in made}) > 2
    for r, choice in zip(done, made, strict=True):
        assert r.choice == choice and len(r.tree) == choice.rows


@pytest.mark.parametrize("golden", GOLDENS, ids=range(len(GOLDENS)))
def test_auto_changes_no_token(golden: dict[str, Any]) -> None:
    want, _ = decode(decoder(PLAIN), golden["prompt_ids"], 96)
    made, lengths = decode(decoder(AUTO), golden["prompt_ids"], 96)
    assert made == want and len(lengths) < 96


@pytest.mark.parametrize("sampling", [WILD, Sampling(0.8, 40, 0.95, 5)])
def test_auto_changes_no_sample(sampling: Sampling) -> None:
    prompt = GOLDENS[2]["prompt_ids"]
    want, _ = decode(decoder(PLAIN), prompt, 60, sampling)
    assert decode(decoder(AUTO), prompt, 60, sampling)[0] == want


@pytest.mark.parametrize("waiting", [1, 7, 16, 17, 40])
def test_the_drafter_takes_in_what_waited_for_it(waiting: int) -> None:
    """After rounds without a draft, however many, it drafts what it does when it drafts every round, bit for bit."""
    d = decoder(AUTO)
    slot, _ = d.start(GOLDENS[3]["prompt_ids"], Sampling(), 200)
    try:
        for _ in range(waiting):
            assert d.policy
            d.policy.drafts = False
            assert d.round()[slot].choice.draft is False  # type: ignore[union-attr]
        tree, want = d.draft_trees()[slot], goldens()[3].trees[waiting]
    finally:
        d.end(slot)
    for name in ("token", "parent", "depth", "score"):
        assert getattr(tree, name).tobytes() == getattr(want, name).tobytes()


def test_sequences_join_and_leave() -> None:
    """Each gets the tokens that it would get alone, while others share its rounds, with a draft or without."""
    sampling = [Sampling(), *[Sampling(3.0, seed=i) for i in range(1, 6)]]
    d = decoder(AUTO, "sequences=4")
    assert d.limits.pending == 16
    slots, made, rows = dict[int, int](), dict[int, list[int]](), set[tuple[bool, int]]()
    for turn in range(30):
        if turn % 5 == 0:
            slot, token = d.start(GOLDENS[turn // 5]["prompt_ids"], sampling[turn // 5], 200)
            slots[slot], made[turn // 5] = turn // 5, [token]
        for slot, done in d.round().items():
            made[slots[slot]] += done.emitted
            assert done.choice and len(done.tree) == done.choice.sizes[slot] + 1
            rows.add((done.choice.draft, done.choice.rows))
        if len(slots) == 4 or turn % 7 == 6:
            gone = min(slots)
            d.end(gone)
            del slots[gone]
    for slot in slots:
        d.end(slot)
    assert len(made) == 6 and {draft for draft, _ in rows} == {True, False} and max(n for _, n in rows) <= 64
    for i, ids in made.items():
        assert len(ids) > 3 and ids == decode(decoder(PLAIN), GOLDENS[i]["prompt_ids"], len(ids), sampling[i])[0]


def test_a_broken_drafter_costs_speed_only() -> None:
    model = load(ROOT / "models" / "kimi_tiny.yaml", [AUTO])
    d = cpu_decoder(model, folders(model, None, None))
    for rank in d.steps["draft"].ranks:  # type: ignore[attr-defined]
        stored = rank.stored["draft.norm.weight"]
        rank.ready["draft.norm.weight"] = -stored.astype(np.float32)
    made, done = rounds(d, GOLDENS[0]["prompt_ids"], 80)
    assert made[:80] == GOLDENS[0]["greedy_ids"][:80]
    assert sum(r.choice.draft for r in done if r.choice) < len(done) / 5
    assert sum(r.choice.ms for r in done if r.choice) < 1.05 * 79 * 2.1


def test_costs_from_the_file() -> None:
    model = load(ROOT / "models" / "kimi_tiny.yaml", [AUTO])
    assert written(model, "cpu") == CURVES["H200"] and written(model, "sm_90a") is None


def test_measured_costs() -> None:
    """The fastest of some runs, in milliseconds, and never less for more rows."""
    now, ran, seconds = [0.0], list[int](), {1: 0.002, 4: 0.003, 6: 0.001, 8: 0.004}

    def verify(rows: int) -> None:
        noise = 0.5 if ran.count(rows) in (0, 2) else 0.0  # the unmeasured run, and one of the others
        ran.append(rows)
        now[0] += seconds.get(rows, 0.005) + noise

    def draft() -> None:
        now[0] += 0.0005

    costs = measured(verify, draft, repeats=2, clock=lambda: now[0])
    assert costs.verify == pytest.approx((2, 3, 3, 4, 5, 5, 5, 5, 5, 5)) and costs.draft == pytest.approx(0.5)
    assert ran == [rows for rows in BUCKETS for _ in range(3)]


def test_costs_are_measured_at_load() -> None:
    d = decoder("tree.budget=auto", "decode.block_size=4")
    assert d.policy and not d.slots and len(d.pool.free) == d.pool.total
    costs = d.policy.costs
    assert costs.draft > 0 and costs.at(64) > 2 * costs.at(1) > 0
    assert decode(d, GOLDENS[0]["prompt_ids"], 12)[0] == GOLDENS[0]["greedy_ids"][:12]


MISTAKES = [
    ("{budget: auto, costs: {cpu: {verify: {1: 1, 32: 2}, draft: 1}}}", "costs.cpu.verify: the rows 1 and 64 are wanted, found 1, 32"),
    ("{budget: auto, costs: {cpu: {verify: {1: 1, 65: 2}, draft: 1}}}", "costs.cpu.verify.65: expected a number of rows, 1..64, found '65'"),
    ("{budget: auto, costs: {cpu: {verify: {1: 0, 64: 2}, draft: 1}}}", "costs.cpu.verify.1: must be above 0.0, found 0"),
    ("{budget: auto, costs: {cpu: {verify: {1: 1, 64: 2}}}}", "costs.cpu: the key 'draft' is missing"),
    ("{budget: auto, costs: {gpu: {verify: {1: 1, 64: 2}, draft: 1}}}", "costs.gpu: expected 'compute_120f', 'sm_90a' or 'cpu', found 'gpu'; "
     "did you mean 'cpu'?"),
    ("{budget: automatic}", "budget: expected a whole number or 'auto', found 'automatic'"),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "says"), MISTAKES)
def test_mistakes_in_the_file(tree: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(ROOT / "models" / "kimi_tiny.yaml", [f"tree={tree}"])
    assert f"decode.tree.{says} (" in str(caught.value)
