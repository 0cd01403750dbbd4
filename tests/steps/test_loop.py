"""The decoder that follows rounds which run ahead of it: right texts whoever joins, leaves, stops, stalls or fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from ddtree.errors import DeviceError, UsageError
from ddtree.graph.buckets import BUCKETS, bucket
from ddtree.graph.build import Limits
from ddtree.runtime.costs import measured_rounds
from ddtree.runtime.cuda import round_state
from ddtree.runtime.cuda.decoder import CudaDecoder
from ddtree.runtime.decoder import Sampling
from tests.steps.choosing import RARE
from tests.steps.machine import AUTO, CONFIGS, MASK, STOP, VOCAB, Machine, Model


class FakeDecoder(CudaDecoder):
    """A CudaDecoder whose prompts are a Model's, too."""

    def __init__(self, machine: Machine, pages: int | None = None) -> None:
        limits, device = machine.limits, machine.kernels.device
        request = {name: device.alloc(8 * limits.sequences, name) for name in ("temperature", "top_k", "top_p", "seed")}
        columns = -(-(512 + 64) // 64)
        super().__init__(
            limits, {}, [], device=device, state=machine.state,  # type: ignore[arg-type]
            page_table=device.alloc(4 * limits.sequences * columns, "pages"), request=request, rounds=machine, sizes=machine.kernels.sizes,
            budget=limits.nodes - 1, mask_id=MASK, vocab=VOCAB, context=512, pages=pages,
        )  # fmt: skip
        self.model, self.machine = machine.model, machine

    def start(self, prompt: Sequence[int], sampling: Sampling, max_tokens: int) -> tuple[int, int]:
        slot, token = super().start(prompt, sampling, max_tokens)
        if self.machine.choosing:
            self.machine.choosing.join(slot)
        return slot, token

    def _prefill(self, slot: int, chunk: np.ndarray, *, last: bool) -> int:
        seed = self.model.seeds[slot] = self.slots[slot].sampling.seed
        return self.model.token(seed, self.slots[slot].committed + len(chunk)) if last else -1


@dataclass
class Watched:
    """A sequence as its user sees it: every token must be the one that the text has at its place."""

    seed: int
    prompt: int
    limit: int
    tokens: list[int]

    def take(self, emitted: list[int], model: Model) -> bool:
        """Whether the sequence has ended for its user."""
        place = self.prompt + len(self.tokens)
        assert emitted == [model.token(self.seed, place + i) for i in range(len(emitted))]
        self.tokens += emitted
        return len(self.tokens) >= self.limit or STOP in emitted


def decoder(limits: Limits, seed: int, *, single: bool = False, pages: int | None = None) -> FakeDecoder:
    rng = random.Random(seed)
    return FakeDecoder(Machine(limits, Model(limits, rng), single=single, burst=rng.choice([1, 3, 9])), pages)


def join(d: FakeDecoder, rng: random.Random, limit: int = 0) -> tuple[int, Watched]:
    prompt, seed, limit = rng.randint(1, 150), rng.randint(0, 10**6), limit or rng.choice([1, 2, 5, 40, 120])
    slot, first = d.start([0] * prompt, Sampling(seed=seed), limit)
    assert first == d.model.token(seed, prompt)
    return slot, Watched(seed, prompt, limit, [first])


@pytest.mark.parametrize("single", [False, True], ids=["device", "host"])
@pytest.mark.parametrize("limits", [CONFIGS[0], CONFIGS[1], CONFIGS[3], AUTO], ids=lambda x: f"{x.sequences}x{x.nodes}")
def test_texts_do_not_depend_on_who_joins_and_leaves(
    limits: Limits, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences join, leave, are cancelled and go past their stop, over a ring of four rounds."""
    monkeypatch.setattr("ddtree.templates.round.RING_ROUNDS", 4)
    for seed in range(2 if limits.auto else 6):
        rng, d = random.Random(seed), decoder(limits, seed, single=single)
        live: dict[int, Watched] = {}
        for _ in range(60):
            if len(live) < limits.sequences and rng.random() < 0.3:
                slot, live[slot] = join(d, rng)
            for slot, done in d.round().items():
                if live[slot].take(done.emitted, d.model) and rng.random() < 0.7:
                    d.end(slot)
                    del live[slot]
                else:
                    assert d.slots[slot].committed == live[slot].prompt + len(live[slot].tokens) - 1
            if live and rng.random() < 0.1:
                slot = rng.choice(list(live))
                d.end(slot)
                del live[slot]
        for slot in live:
            d.end(slot)
        assert sorted(d.pool.free) == list(range(d.pool.total)) and not d.ahead and not d.state.running


def test_the_ring_fills_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtree.templates.round.RING_ROUNDS", 4)
    d = FakeDecoder(Machine(CONFIGS[3], Model(CONFIGS[3], random.Random(0)), burst=50))
    slot, mine = join(d, random.Random(1), 200)
    for _ in range(40):
        mine.take(d.round()[slot].emitted, d.model)
        while d.state.running:  # the host stalls: as many rounds run as the ring holds
            d.device.idle()
        assert 2 <= d.state.unread <= 4
    assert len(mine.tokens) == 41


@pytest.mark.parametrize("single", [False, True], ids=["device", "host"])
def test_no_page_left(single: bool) -> None:
    """Everything before the round that finds no page, then the error; what ends makes room for the other."""
    limits = CONFIGS[1]
    d = decoder(limits, 3, single=single, pages=4)
    live = {}
    for seed in (5, 6):
        slot, first = d.start([0] * 60, Sampling(seed=seed), 400)
        live[slot] = Watched(seed, 60, 10**9, [first])
    with pytest.raises(UsageError, match="all 4 KV pages of 64 positions are in use"):
        while True:
            for slot, done in d.round().items():
                live[slot].take(done.emitted, d.model)
    # two pages each, and the next round of one of them might need a third
    assert max(60 + len(w.tokens) - 1 for w in live.values()) + limits.depths + 1 > 128
    assert all(d.ahead[slot].committed == d.slots[slot].committed for slot in live)
    d.end(0)
    before = len(live[1].tokens)
    while 60 + len(live[1].tokens) < 240:
        live[1].take(d.round()[1].emitted, d.model)
    assert len(live[1].tokens) > before


@pytest.mark.parametrize("burst", [1, 9])
def test_a_token_that_cannot_be_chosen_ends_its_sequence_alone(burst: int) -> None:
    model = Model(CONFIGS[1], random.Random(2), missing=(5, 60))
    d = FakeDecoder(Machine(CONFIGS[1], model, burst=burst))
    live = {}
    for seed in (4, 5):
        slot, first = d.start([0] * 20, Sampling(seed=seed), 400)
        live[slot] = Watched(seed, 20, 10**9, [first])
    with pytest.raises(DeviceError, match="logits are NaN"):
        while True:
            for slot, done in d.round().items():
                live[slot].take(done.emitted, model)
    assert 60 - 4 <= 20 + len(live[1].tokens) <= 60  # the round before the one that meets it
    d.end(1)
    while len(live[0].tokens) < 200:
        for slot, done in d.round().items():
            live[slot].take(done.emitted, model)


def test_a_gpu_that_hangs_is_noticed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_state, "WAIT_SECONDS", 0.1)
    d = decoder(CONFIGS[0], 0)
    slot, _ = join(d, random.Random(0), 100)
    d.device.work = lambda: False  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="no round ended within"):
        d.round()
    monkeypatch.setattr(round_state, "WAIT_SECONDS", 60.0)
    with pytest.raises(DeviceError, match="no round ended within"):
        d.end(slot)


def test_a_launch_that_was_interrupted() -> None:
    """Ctrl-C between the note of a launch and the launch: nothing waits for it."""
    d = decoder(CONFIGS[0], 0)
    slot, mine = join(d, random.Random(0), 100)
    mine.take(d.round()[slot].emitted, d.model)
    d._pause()
    launch, d.rounds.launch = d.rounds.launch, lambda rows: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        while True:
            mine.take(d.round()[slot].emitted, d.model)
    d.rounds.launch = launch  # type: ignore[method-assign]
    while len(mine.tokens) < 100:
        mine.take(d.round()[slot].emitted, d.model)
    d.end(slot)


def test_a_fault_of_a_kernel_is_told_once_more_at_the_end() -> None:
    d = decoder(CONFIGS[0], 0)
    slot, _ = join(d, random.Random(0), 100)

    def fault() -> bool:
        raise DeviceError("running rounds: CUDA_ERROR_LAUNCH_FAILED (719)")

    d.device.work = fault  # type: ignore[attr-defined]
    for call in (d.round, lambda: d.end(slot)):
        with pytest.raises(DeviceError, match="719"):
            call()


@pytest.mark.parametrize("single", [False, True], ids=["device", "host"])
def test_rounds_choose_their_size_and_say_why(single: bool) -> None:
    """Where few drafts pay, most rounds have none; what waited is taken in before the next; probes are marked."""
    d = decoder(AUTO, 4, single=single)
    d.use(RARE)
    slot, mine = join(d, random.Random(0), 200)
    choices = []
    while len(mine.tokens) < 200:
        done = d.round()[slot]
        mine.take(done.emitted, d.model)
        assert done.choice and len(done.tree) == done.choice.sizes[slot] + 1 == done.choice.rows
        choices.append(done.choice)
    d.end(slot)
    drafts = [c for c in choices if c.draft]
    assert 0 < sum(c.probe for c in drafts) <= len(drafts) < len(choices) / 3
    assert choices[0].draft and not choices[0].probe and len(choices[0].calibration[slot]) == AUTO.depths
    assert all(c.plain == RARE.at(1) and not c.calibration for c in choices if not c.draft)


def test_costs_come_from_rounds_that_are_made_to_draft() -> None:
    """Each row capacity is reached, and what is measured is the fastest round of its kind."""
    d = decoder(AUTO, 0)
    fastest: dict[tuple[bool, int], float] = {}
    inner, rng = d._one, random.Random(1)

    def timed(outcome, slot, seconds, choice):  # type: ignore[no-untyped-def]
        ms = RARE.at(choice.rows) + (RARE.draft if choice.draft else 0.0) + rng.choice([0.0, 5.0])
        key = choice.draft, bucket(choice.rows)
        fastest[key] = min(fastest.get(key, 1e9), ms)
        return inner(outcome, slot, {"draft": 0.0, "verify": 1e-3 * ms}, choice)

    d._one = timed  # type: ignore[method-assign]
    d.machine.model.tree = full_tree  # type: ignore[method-assign]
    costs = measured_rounds(d)
    assert {b for draft, b in fastest if draft} == set(BUCKETS) and (False, 1) in fastest
    assert costs.verify[0] == pytest.approx(fastest[False, 1])
    assert costs.draft == pytest.approx(fastest[True, 1] - fastest[False, 1])
    assert costs.at(64) == pytest.approx(fastest[True, 64] - costs.draft)
    assert not d.slots and d.sizes and d.sizes.costs.table.tolist() != costs.table.tolist()  # `use` is the caller's


def full_tree(slot: int, committed: int, most: int) -> list[tuple[int, int, int]]:
    """Wrong tokens below the root, as many as may be."""
    return [(-1, -1, 0), *((VOCAB + n, 0, 1) for n in range(1, most))]
