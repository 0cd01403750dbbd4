"""The loop of rounds: the control kernels against a host oracle, and the decoder that follows rounds which run ahead of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from ddtree.errors import DeviceError, UsageError
from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import Limits
from ddtree.runtime.cuda import round_state
from ddtree.runtime.cuda.decoder import CudaDecoder
from ddtree.runtime.decoder import Sampling
from tests.emulator import guarded
from tests.steps.rounds import Between, HostDevice, Table, ints

MASK, STOP, VOCAB = 9, 7, 50
WORD = 2**32 - 1
CONFIGS = [Limits(1, 8, 7, 8, 16, 15), Limits(5, 8, 3, 4, 13, 12), Limits(64, 8, 1, 2, 32, 8), Limits(3, 8, 0, 0, 1, 1)]


@dataclass
class Model:
    """A stand-in for the steps: texts that depend on nothing but a sequence's seed and the position, drafted trees that hold a
    part of the text, and the outcome of their verification."""

    limits: Limits
    rng: random.Random
    missing: tuple[int, int] | None = None  # seed and position of a token that cannot be chosen
    seeds: dict[int, int] = field(default_factory=dict)

    def token(self, seed: int, position: int) -> int:
        if (seed, position) == self.missing:
            return -1
        return random.Random(f"{seed} {position}").randrange(VOCAB)

    def tree(self, slot: int, committed: int, most: int) -> list[tuple[int, int, int]]:
        """(token, parent, depth) of a tree of at most `most` nodes; its first chain is the text for a while."""
        nodes, right = [(-1, -1, 0)], [0]
        wanted = self.rng.randint(1, most)
        while len(nodes) < wanted:
            parent = right[-1] if self.rng.random() < 0.7 else self.rng.randrange(len(nodes))
            depth = nodes[parent][2] + 1
            if depth > self.limits.depths:
                if all(n[2] == self.limits.depths for n in nodes[-3:]):
                    break
                continue
            true = self.token(self.seeds[slot], committed + depth)
            if parent == right[-1] and self.rng.random() < 0.8 and true >= 0:
                nodes.append((true, parent, depth))
                right.append(len(nodes) - 1)
            else:
                nodes.append((VOCAB + len(nodes), parent, depth))
        return nodes

    def accepted(self, slot: int, committed: int, tree: list[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
        """Path and emitted tokens."""
        path, at = [0], 0
        while True:
            true = self.token(self.seeds[slot], committed + len(path))
            at = next((i for i, n in enumerate(tree) if n[1] == at and n[0] == true and i), -1)
            if at < 0:
                break
            path.append(at)
        return path, [self.token(self.seeds[slot], committed + d) for d in range(1, len(path) + 1)]


def stop(emitted: list[int], remaining: int) -> tuple[int, int]:
    """Kept and done, as Stop's reference has them."""
    tokens = emitted[: max(0, remaining)]
    hit = next((i for i, t in enumerate(tokens) if t in (STOP, -1)), None)
    if hit is not None:
        return (hit, 3) if tokens[hit] == -1 else (hit + 1, 1)
    kept = min(len(emitted), remaining)
    return kept, 2 if kept == remaining else 0


class Machine:
    """Rounds on emulated control kernels; the steps are a Model. `burst` is how many rounds run before the host looks."""

    nap = 0.0

    def __init__(self, limits: Limits, model: Model, *, single: bool = False, burst: int = 1) -> None:
        self.limits, self.model, self.burst, self.single = limits, model, burst, single
        self.kernels = Between(limits, MASK, HostDevice(self.work))
        if single:
            self.kernels.places["more"] = 0
        self.state, n, wide = self.kernels.state, limits.sequences, limits.depths + 1
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("node_token", "node_parent", "node_depth"), (n, limits.nodes)
        )
        shapes |= dict.fromkeys(("path", "emitted"), (n, wide)) | dict.fromkeys(("length", "kept", "done"), (n,))
        self.out = {name: guarded(np.full(shape, -5, np.int32)) for name, shape in shapes.items()}
        self.out["node_score"] = guarded(np.zeros((n, limits.nodes)))
        self.busy, self.bucket = False, 0

    def launch(self, rows: int) -> None:
        self.bucket, self.busy = rows, True

    def work(self) -> bool:
        """Some rounds, if a launch has not ended."""
        for _ in range(self.model.rng.randint(1, self.burst)):
            if not self.busy:
                break
            self.round()
            self.busy = not self.single and bool(self.kernels.more[0])
        return not self.busy

    def round(self) -> None:
        """One round, each kernel's results against the oracle."""
        limits, kernels, state = self.limits, self.kernels, self.state
        struct = ints(state.address, 4)
        active, turn = int(struct[0]), int(struct[2]) & WORD
        slots = kernels.array("slots")[:active].tolist()
        before = {k: kernels.array(k).copy() for k in ("committed", "anchor", "remaining", "limit")}
        rows_of = {"draft": limits.sequences * limits.block, "verify": 64, "commit": 64}
        tables = {k: Table(limits.sequences, state.arrays["committed"], rows=n) for k, n in rows_of.items()}
        ids = {f"{k}_ids": guarded(np.full(rows_of[k], -7, np.int32)) for k in ("draft", "verify")}
        places = {**self.out, **ids, **{f"{k}_table": t.struct for k, t in tables.items()}}
        if limits.block:
            kernels.run("draft_rows", places)
            self._check_draft_rows(slots, before, tables["draft"], ids["draft_ids"])
            most = min(int(struct[1]), 64 // active - 1)
            assert [kernels.array("budgets")[s] for s in slots] == [most] * active
        trees = {s: self.model.tree(s, before["committed"][s], most + 1 if limits.block else 1) for s in slots}
        self._draft(trees)
        kernels.run("tree_rows", places)
        rows = [(s, n, node) for s in slots for n, node in enumerate(trees[s])]
        self._check_tree_rows(rows, trees, slots, before, tables["verify"], ids["verify_ids"])
        outcome = {s: self.model.accepted(s, before["committed"][s], trees[s]) for s in slots}
        self._verify(outcome, before["remaining"])
        kernels.run("commit_rows", places)
        first = dict(zip(slots, np.cumsum([0, *(len(trees[s]) for s in slots)]).tolist(), strict=False))
        t, paths = tables["commit"], [(s, j) for s in slots for j in range(len(outcome[s][0]))]
        assert t.counts() == (len(paths), len(paths))
        assert t.arrays["sequence"][: len(paths)].tolist() == [s for s, _ in paths]
        assert t.arrays["position"][: len(paths)].tolist() == [before["committed"][s] + j for s, j in paths]
        assert t.arrays["source"][: len(paths)].tolist() == [first[s] + outcome[s][0][j] for s, j in paths]
        pause, tail = (int(ints(state.control, 18, dtype=np.uint32)[i]) for i in (16, 17))
        kernels.run("advance", places)
        self._check_advance(slots, trees, outcome, before, turn, pause, tail)

    def _check_draft_rows(self, slots, before, table, ids) -> None:  # type: ignore[no-untyped-def]
        block, a, n = self.limits.block, table.arrays, len(slots) * self.limits.block
        assert table.counts() == (n, n - len(slots))
        assert a["sequence"][:n].tolist() == [s for s in slots for _ in range(block)]
        assert a["position"][:n].tolist() == [before["committed"][s] + j for s in slots for j in range(block)]
        assert a["wanted"][: n - len(slots)].tolist() == [r for r in range(n) if r % block]
        assert ids[:n].tolist() == [MASK if j else before["anchor"][s] for s in slots for j in range(block)]

    def _draft(self, trees: dict[int, list[tuple[int, int, int]]]) -> None:
        count = ints(self.state.count, self.limits.sequences)
        count[:] = 0 if self.limits.block else -5
        for s, tree in trees.items():
            if self.limits.block:
                count[s] = len(tree)
            for name, column in zip(("node_token", "node_parent", "node_depth"), zip(*tree, strict=True), strict=True):
                self.out[name][s, : len(tree)] = column
            self.out["node_score"][s, : len(tree)] = -np.arange(len(tree))

    def _verify(self, outcome: dict[int, tuple[list[int], list[int]]], remaining: np.ndarray) -> None:
        self.out["length"][:] = 0
        for s, (path, emitted) in outcome.items():
            self.out["path"][s], self.out["emitted"][s] = -1, -1
            self.out["path"][s, : len(path)], self.out["emitted"][s, : len(path)] = path, emitted
            self.out["length"][s] = len(path)
            self.out["kept"][s], self.out["done"][s] = stop(emitted, int(remaining[s]))

    def _check_tree_rows(self, rows, trees, slots, before, table, ids) -> None:  # type: ignore[no-untyped-def]
        first = dict(zip(slots, np.cumsum([0, *(len(trees[s]) for s in slots)]).tolist(), strict=False))
        n, a = len(rows), table.arrays
        assert table.counts() == (n, n)
        assert a["sequence"][:n].tolist() == [s for s, _, _ in rows]
        assert a["node"][:n].tolist() == [i for _, i, _ in rows]
        assert a["position"][:n].tolist() == [before["committed"][s] + node[2] for s, _, node in rows]
        assert a["parent"][:n].tolist() == [-1 if i == 0 else first[s] + node[1] for s, i, node in rows]
        assert ids[:n].tolist() == [before["anchor"][s] if i == 0 else node[0] for s, i, node in rows]
        buckets = needed_buckets(self.limits)
        assert buckets[self.kernels.choice[0]] == next(b for b in buckets if n <= b)
        assert n <= self.bucket or not self.single

    def _check_advance(self, slots, trees, outcome, before, turn, pause, tail) -> None:  # type: ignore[no-untyped-def]
        kernels, wide, record = self.kernels, self.limits.depths + 1, self.state.records[turn % len(self.state.records)]
        assert record["slots"][: record["active"]].tolist() == slots
        assert record["rows"] == sum(map(len, trees.values()))
        left, room = [], True
        for s in slots:
            path, emitted = outcome[s]
            kept, done = stop(emitted, int(before["remaining"][s]))
            mine, tree = record["slot"][s], trees[s]
            assert (mine["length"], mine["kept"], mine["done"], mine["nodes"]) == (len(path), kept, done, len(tree))
            assert mine["path"][: len(path)].tolist() == path and mine["emitted"][: len(path)].tolist() == emitted
            assert mine["token"][: len(tree)].tolist() == [before["anchor"][s], *(n[0] for n in tree[1:])]
            assert mine["parent"][: len(tree)].tolist() == [n[1] for n in tree]
            assert mine["depth"][: len(tree)].tolist() == [n[2] for n in tree]
            assert record["score"][s][: len(tree)].tolist() == (-np.arange(len(tree))).tolist()
            assert kernels.array("anchor")[s] == emitted[-1]
            assert kernels.array("committed")[s] == before["committed"][s] + len(path)
            assert kernels.array("remaining")[s] == before["remaining"][s] - len(path)
            if not done:
                left.append(s)
                room = room and before["committed"][s] + len(path) + wide <= before["limit"][s]
        struct = ints(self.state.address, 4)
        assert struct[0] == len(left) and kernels.array("slots")[: len(left)].tolist() == left
        assert int(struct[2]) & WORD == turn + 1 & WORD
        again = bool(left) and room and not pause and turn + 1 - tail & WORD < len(self.state.records)
        assert self.single or kernels.more[0] == again
        assert self.state.head & WORD == turn + 1 & WORD and self.state.running == (again and not self.single)


@pytest.mark.parametrize("limits", CONFIGS, ids=lambda x: f"{x.sequences}x{x.nodes}")
def test_control_kernels_against_the_oracle(limits: Limits) -> None:
    """500 random states over all sizes: active slots in any order, stops, limits, pauses and full rings."""
    rng = random.Random(limits.sequences)
    for _ in range(125):
        model = Model(limits, rng, missing=(1, rng.randint(1, 400)))
        machine = Machine(limits, model)
        active = rng.sample(range(limits.sequences), rng.randint(1, limits.sequences))
        model.seeds = {s: rng.randint(0, 3) for s in active}
        values = {name: np.zeros(limits.sequences, np.int32) for name in ("committed", "anchor", "remaining", "limit")}
        for s in active:
            values["committed"][s], values["anchor"][s] = rng.randint(1, 300), rng.randrange(VOCAB)
            values["remaining"][s] = rng.choice([0, 1, 2, 3, 9, 1000])
            values["limit"][s] = values["committed"][s] + rng.choice([1, 2, 3, 1000])
        state = machine.state
        state.taken = rng.choice([0, 5, 2**32 - 3])
        head = state.taken + rng.choice([0, 1, state.ring - 1])
        state._words["head"], state._words["tail"] = head & 0xFFFFFFFF, state.taken & 0xFFFFFFFF
        state.write(active, limits.nodes - 1, values)
        state.begin()
        state._words["pause"] = rng.random() < 0.2
        machine.launch(64)
        machine.round()


class FakeDecoder(CudaDecoder):
    """A CudaDecoder whose prompts are a Model's, too."""

    def __init__(self, machine: Machine, pages: int | None = None) -> None:
        limits, device = machine.limits, machine.kernels.device
        request = {name: device.alloc(8 * limits.sequences, name) for name in ("temperature", "top_k", "top_p", "seed")}
        columns = -(-(512 + 64) // 64)
        super().__init__(
            limits, {}, [], device=device, state=machine.state,  # type: ignore[arg-type]
            page_table=device.alloc(4 * limits.sequences * columns, "pages"), request=request, rounds=machine,
            budget=limits.nodes - 1, mask_id=MASK, vocab=VOCAB, context=512, pages=pages,
        )  # fmt: skip
        self.model = machine.model

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
@pytest.mark.parametrize("limits", [CONFIGS[0], CONFIGS[1], CONFIGS[3]], ids=lambda x: f"{x.sequences}x{x.nodes}")
def test_texts_do_not_depend_on_who_joins_and_leaves(
    limits: Limits, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences join, leave, are cancelled and go past their stop, over a ring of four rounds."""
    monkeypatch.setattr("ddtree.templates.round.RING_ROUNDS", 4)
    for seed in range(6):
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
