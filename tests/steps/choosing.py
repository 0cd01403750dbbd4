"""Rounds that choose their size on emulated kernels, beside the host's policy."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from ddtree.graph.budget import PATIENCE, Choice, Costs, Policy
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.templates.budget import state_dtype
from tests.emulator import guarded
from tests.steps.rounds import ROW, Between, Table, ints

COSTS = Costs.of({1: 2.1, 8: 4.6, 16: 7.2, 32: 10.9, 64: 15.5}, 0.5)
RARE = Costs.of({1: 2.1, 8: 14.6, 16: 17.2, 32: 20.9, 64: 25.5}, 0.7)  # by which few drafts pay


class Choosing:
    """Launches the kernels of `budget: auto` and checks what they leave.

    policy   makes the same decisions      waiting  by slot, rows that the drafter has not taken in
    """

    def __init__(self, kernels: Between, costs: Costs = COSTS) -> None:
        assert kernels.sizes
        self.kernels, self.limits, self.sizes = kernels, kernels.limits, kernels.sizes
        self.sizes.use(costs)
        self.policy = Policy(costs, self.limits.sequences, self.limits.depths)
        dtype = state_dtype(self.limits)
        self.state = ints(self.sizes.state, dtype.itemsize, dtype=np.uint8).view(dtype)[0]
        self.waiting = [0] * self.limits.sequences
        self.pending = guarded(np.zeros((self.limits.sequences, self.limits.pending, ROW), np.uint8))
        self.choice: Choice | None = None

    def join(self, slot: int) -> None:
        """The decoder has told the GPU that a sequence joined."""
        self.policy.join(slot)
        self.waiting[slot] = 0

    def randomise(self, active: list[int], committed: np.ndarray, rng: random.Random) -> None:
        """A state as many rounds may have left it."""
        policy, state = self.policy, self.state
        policy.drafts = state["draft"] = rng.random() < 0.5
        policy.lost = state["lost"] = rng.choice([0.0, 0.7, PATIENCE])
        policy.waited = state["waited"] = rng.randint(0, 20)
        for s in active:
            room = min(self.limits.pending, int(committed[s]))
            self.waiting[s] = state["slot"]["waiting"][s] = rng.choice([0, room, rng.randint(0, room)])

    def begins(self, slots: list[int], committed: np.ndarray) -> bool:
        """Whether the round drafts."""
        table = Table(self.limits.sequences, self.kernels.state.arrays["committed"])
        self.kernels.run("context_rows", {"context_table": table.struct})
        draft, room, self.policy.costs = self.policy.drafts, self.limits.pending, self.sizes.costs
        full = any(self.waiting[s] == room for s in slots)
        rows = [(s, k) for s in slots for k in range(self.waiting[s])] if draft or full else []
        on = {name: int(word[0]) for name, word in self.kernels.conditions.items()}
        assert (on["on_take_in"], on["on_draft"], on["on_commit"]) == (len(rows) > 0, draft, draft)
        n, a = len(rows), table.arrays
        assert table.counts() == (n, n)
        assert a["sequence"][:n].tolist() == [s for s, _ in rows]
        assert a["position"][:n].tolist() == [committed[s] - self.waiting[s] + k for s, k in rows]
        assert a["source"][:n].tolist() == [s * room + k for s, k in rows]
        for s, _ in rows:
            self.waiting[s] = 0
        return draft

    def choose(self, trees: dict[int, DraftTree], places: Mapping[str, Any]) -> dict[int, int]:
        """How many nodes of each tree are verified."""
        self.kernels.run("choose_budget", places)
        known = self.policy.trees
        self.choice = self.policy.choose(trees) if self.policy.drafts else self.policy.plain(list(trees))
        self.policy.trees = {**known, **self.policy.trees}  # a stopped sequence may go on
        count = ints(self.kernels.state.count, self.limits.sequences)
        assert [count[s] for s in trees] == [1 + n for n in self.choice.sizes.values()]
        return self.choice.sizes

    def settle(self, emitted: Mapping[int, list[int]], places: Mapping[str, Any]) -> None:
        """The end of a round before `advance`."""
        assert self.choice
        if not self.choice.draft:
            features = np.array([[7 * s + 1] * ROW for s in emitted], np.uint8)
            self.kernels.run("keep_features", {"features": guarded(features), "pending": self.pending})
            for s in emitted:
                assert (self.pending[s, self.waiting[s]] == 7 * s + 1).all()
                self.waiting[s] += 1
        self.kernels.run("settle_budget", places)
        self.policy.settle(self.choice, emitted)
        assert bool(self.state["draft"]) == self.policy.drafts and self.state["lost"] == self.policy.lost
        assert all(self.state["slot"]["waiting"][s] == self.waiting[s] for s in emitted)

    def check_record(self, turn: int, slots: list[int]) -> None:
        """The record says what the policy said, and when the round began."""
        state = self.kernels.state
        assert self.sizes.choice(state, turn % state.ring, slots) == self.choice
        assert state.columns["time"][turn % state.ring].tolist() == [1] * 4
