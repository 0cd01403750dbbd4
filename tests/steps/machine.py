"""Rounds on emulated control kernels, each checked against a host oracle; a stand-in does what the steps between would do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import Limits
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.runtime.accept_trace import AcceptTrace
from tests.emulator import guarded
from tests.steps.choosing import Choosing
from tests.steps.rounds import Between, HostDevice, Table, ints

MASK, STOP, VOCAB = 9, 7, 50
WORD = 2**32 - 1
CONFIGS = [Limits(1, 8, 7, 8, 16, 15), Limits(5, 8, 3, 4, 13, 12), Limits(64, 8, 1, 2, 32, 8), Limits(3, 8, 0, 0, 1, 1)]
AUTO = Limits(3, 8, 7, 8, 64, 63, auto=True)

Nodes: TypeAlias = "list[tuple[int, int, int]]"  # token, parent, depth
Outcome: TypeAlias = "tuple[list[int], list[int]]"  # path, emitted


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


def limit(emitted: list[int], remaining: int) -> tuple[int, int]:
    """The same where nothing but the number of tokens ends a sequence."""
    return min(len(emitted), remaining), 2 if len(emitted) >= remaining else 0


class Machine:
    """Rounds on emulated control kernels; the steps are a Model. Runs at most `burst` rounds before the host looks; `how` says
    how the emulator runs (Between)."""

    nap = 0.0

    def __init__(
        self,
        limits: Limits,
        model: Model,
        *,
        single: bool = False,
        burst: int = 1,
        trace: AcceptTrace | None = None,
        **how: Any,
    ) -> None:
        self.limits, self.model, self.burst, self.single, self.trace = limits, model, burst, single, trace
        self.kernels = Between(limits, MASK, HostDevice(self.work), forced=trace is not None, **how)
        self.stop = stop if trace is None else limit
        self.turns = guarded(np.zeros(limits.sequences, np.int32))
        if single:
            self.kernels.places["more"] = 0
        self.state, n, wide = self.kernels.state, limits.sequences, limits.depths + 1
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("node_token", "node_parent", "node_depth"), (n, limits.nodes)
        )
        shapes |= dict.fromkeys(("path", "emitted"), (n, wide)) | dict.fromkeys(("length", "kept", "done"), (n,))
        self.out = {name: guarded(np.full(shape, -5, np.int32)) for name, shape in shapes.items()}
        self.out["node_score"] = guarded(np.zeros((n, limits.nodes)))
        self.choosing = Choosing(self.kernels) if limits.auto else None
        self.score = -0.15 * np.arange(limits.nodes)  # of a tree's nodes
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
        most, drafts = 0, self.choosing.begins(slots, before["committed"]) if self.choosing else limits.block > 0
        if drafts:
            kernels.run("draft_rows", places)
            self._check_draft_rows(slots, before, tables["draft"], ids["draft_ids"])
            most = min(int(struct[1]), 64 - active if limits.auto else 64 // active - 1)
            assert [kernels.array("budgets")[s] for s in slots] == [most] * active
        trees = {s: self.model.tree(s, before["committed"][s], most + 1) for s in slots}
        if drafts or not self.choosing:
            self._draft(trees)
        if self.choosing:
            whole = {s: DraftTree(*np.array(tree, np.int32).T, self.score[: len(tree)]) for s, tree in trees.items()}
            sizes = self.choosing.choose(whole, places)
            trees = {s: tree[: sizes[s] + 1] for s, tree in trees.items()}
        kernels.run("tree_rows", places)
        rows = [(s, n, node) for s in slots for n, node in enumerate(trees[s])]
        self._check_tree_rows(rows, trees, slots, before, tables["verify"], ids["verify_ids"])
        outcome = {s: self.model.accepted(s, before["committed"][s], trees[s]) for s in slots}
        self._verify(outcome, before["remaining"])
        if self.trace:
            outcome = self._force(self.trace, trees, places)
        kernels.run("commit_rows", places)
        first = dict(zip(slots, np.cumsum([0, *(len(trees[s]) for s in slots)]).tolist(), strict=False))
        t, paths = tables["commit"], [(s, j) for s in slots for j in range(len(outcome[s][0]))]
        assert t.counts() == (len(paths), len(paths))
        assert t.arrays["sequence"][: len(paths)].tolist() == [s for s, _ in paths]
        assert t.arrays["position"][: len(paths)].tolist() == [before["committed"][s] + j for s, j in paths]
        assert t.arrays["source"][: len(paths)].tolist() == [first[s] + outcome[s][0][j] for s, j in paths]
        pause, tail = (int(ints(state.control, 18, dtype=np.uint32)[i]) for i in (16, 17))
        if self.choosing:
            self.choosing.settle({s: emitted for s, (_, emitted) in outcome.items()}, places)
        kernels.run("advance", places)
        self._check_advance(slots, trees, outcome, before, turn, pause, tail)
        if self.choosing:
            self.choosing.check_record(turn, slots)

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
            self.out["node_score"][s, : len(tree)] = self.score[: len(tree)]

    def _verify(self, outcome: dict[int, tuple[list[int], list[int]]], remaining: np.ndarray) -> None:
        self.out["length"][:] = 0
        for s, (path, emitted) in outcome.items():
            self.out["path"][s], self.out["emitted"][s] = -1, -1
            self.out["path"][s, : len(path)], self.out["emitted"][s, : len(path)] = path, emitted
            self.out["length"][s] = len(path)
            self.out["kept"][s], self.out["done"][s] = stop(emitted, int(remaining[s]))

    def _force(self, trace: AcceptTrace, trees: dict[int, Nodes], places: dict[str, Any]) -> dict[int, Outcome]:
        """The outcome of the round when its lengths come from a list."""
        chosen, before, first, outcome = np.arange(64, dtype=np.int32) + 2 * VOCAB, self.turns.copy(), 0, {}
        self.kernels.run(
            "force_accept", {**places, "trace": guarded(trace.table), "turns": self.turns, "chosen": guarded(chosen)}
        )
        for s, tree in trees.items():
            path = trace.path(DraftTree(*np.array(tree, np.int32).T, self.score[: len(tree)]), int(before[s]))
            outcome[s] = path, [*(tree[n][0] for n in path[1:]), int(chosen[first + path[-1]])]
            first, n = first + len(tree), len(path)
            assert self.turns[s] == before[s] + 1 and self.out["length"][s] == n
            assert self.out["path"][s].tolist() == [*path, *[-1] * (self.limits.depths + 1 - n)]
            assert self.out["emitted"][s].tolist() == [*outcome[s][1], *[-1] * (self.limits.depths + 1 - n)]
        return outcome

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
            kept, done = self.stop(emitted, int(before["remaining"][s]))
            mine, tree = record["slot"][s], trees[s]
            assert (mine["length"], mine["kept"], mine["done"], mine["nodes"]) == (len(path), kept, done, len(tree))
            assert mine["path"][: len(path)].tolist() == path and mine["emitted"][: len(path)].tolist() == emitted
            assert mine["token"][: len(tree)].tolist() == [before["anchor"][s], *(n[0] for n in tree[1:])]
            assert mine["parent"][: len(tree)].tolist() == [n[1] for n in tree]
            assert mine["depth"][: len(tree)].tolist() == [n[2] for n in tree]
            assert record["score"][s][: len(tree)].tolist() == self.score[: len(tree)].tolist()
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
