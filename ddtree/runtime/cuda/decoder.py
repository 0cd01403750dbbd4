"""The decoder of a GPU: prompts through prefill kernels, rounds through captured graphs that may run ahead of the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.errors import DeviceError, UsageError
from ddtree.graph.budget import Choice, Costs
from ddtree.graph.build import Limits
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.step_graph import StepName
from ddtree.runtime.cuda.budget import BudgetMemory
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.round import Rounds
from ddtree.runtime.cuda.round_state import RoundState
from ddtree.runtime.decoder import Decoder, Round, Sampling, SlotMemory, StepExecutor
from ddtree.runtime.kv import PAGE

PAUSE_NAP = 5e-5  # seconds between looks while the loop's last round ends
LONGEST_NAP = 1e-3  # seconds between looks for a round, an eighth of one until there


@dataclass
class _Ahead:
    """Where a sequence stands on the GPU, rounds ahead of what `round` has returned.

    first    the first round that the sequence takes part in
    limit    positions that have pages          stopped  a stop test took it out of the rounds
    told     `round` has returned the round in which it stopped
    """

    committed: int
    anchor: int
    remaining: int
    first: int
    limit: int = 0
    stopped: bool = False
    told: bool = False


@dataclass(frozen=True)
class _Outcome:
    """What a round did: its slots in row order; by slot the committed rows, why it stopped (0: it did not), new tokens."""

    turn: int
    slots: list[int]
    length: list[int]
    done: list[int]
    emitted: list[list[int]]


class CudaDecoder(Decoder):
    """Rounds are graph launches; the host reads their records and decides nothing inside a round.

    A launch may run many rounds, until every sequence has met a stop id or its token limit. `round` returns the oldest
    round that was not returned yet. `start` and `end` pause the rounds; what ran ahead for other sequences stays valid. A
    sequence that stopped and is not ended goes on at the next `round`, which pauses the others for it.

    state  what the GPU and the host share      page_table  device address      request  device addresses of the sampling
    parameters, by name                         rounds      launches rounds
    sizes  under budget auto                    turns       with a trace: device address of each slot's rounds
    """

    def __init__(
        self,
        limits: Limits,
        steps: Mapping[StepName, StepExecutor],
        caches: Sequence[SlotMemory],
        *,
        device: Device,
        state: RoundState,
        page_table: int,
        request: Mapping[str, int],
        rounds: Rounds,
        sizes: BudgetMemory | None = None,
        turns: int = 0,
        **limits_of_text: Any,
    ) -> None:
        super().__init__(limits, steps, caches, **limits_of_text)
        self.device, self.state, self.rounds, self.sizes = device, state, rounds, sizes
        self.page_table, self.request, self.turns = page_table, dict(request), turns
        self.ahead: dict[int, _Ahead] = {}
        self._outcomes: deque[_Outcome] = deque()  # of rounds that `ahead` knows of and `round` has not returned
        self._followed = 0  # rounds that `ahead` knows of
        self._ended = 0  # time of the last record, nanoseconds of the GPU's clock
        self._nap = rounds.nap
        self._stale = True  # the device's state is older than `ahead`

    def use(self, costs: Costs) -> None:
        """See Decoder."""
        self._pause()
        if self.sizes:
            self.sizes.use(costs)

    def costs(self) -> Costs:
        """See Decoder."""
        assert self.sizes
        return self.sizes.costs

    def start(self, prompt: Sequence[int], sampling: Sampling, max_tokens: int) -> tuple[int, int]:
        """Prefill in a free slot; see Decoder."""
        self._pause()
        for slot, ahead in self.ahead.items():  # pages mapped in advance are free for the prompt
            self.pool.trim(slot, ahead.committed)
        slot, token = super().start(prompt, sampling, max_tokens)
        state = self.slots[slot]
        self.ahead[slot] = _Ahead(state.committed, state.anchor, state.remaining, self.state.head)
        if self.sizes:
            self.sizes.join(slot)
        if self.turns:
            self.device.write(self.turns + 4 * slot, np.zeros(1, np.int32))
        return slot, token

    def end(self, slot: int) -> None:
        """Forget a sequence; see Decoder."""
        self._pause()
        self.ahead.pop(slot, None)
        super().end(slot)

    def round(self) -> dict[int, Round]:
        """The next round of the sequences; see Decoder. One that stopped in an earlier round and was not returned yet is
        absent until then."""
        if any(ahead.told for ahead in self.ahead.values()):
            self._pause()
            for ahead in self.ahead.values():
                if ahead.told:
                    ahead.stopped = ahead.told = False
        while self.slots:
            self._go_on()
            self.state.wait_record(self._nap)
            self._follow()
            if self._outcomes and (done := self._returned(self._outcomes[0])):
                return done
        return {}

    def _pause(self) -> None:
        """No round runs afterwards, and `ahead` is where the GPU is."""
        self.state.pause(PAUSE_NAP)
        self._follow()
        self._stale = True

    def _follow(self) -> None:
        """Take note of every round that has been recorded."""
        columns = self.state.columns
        for turn in range(self._followed, self.state.head):
            at = turn % self.state.ring
            slots = columns["slots"][at, : columns["active"][at]].tolist()
            length, done, emitted = (columns[name][at].tolist() for name in ("length", "done", "emitted"))
            self._outcomes.append(_Outcome(turn, slots, length, done, emitted))
            for slot in slots:
                if slot in self.ahead and turn >= self.ahead[slot].first:
                    ahead, n = self.ahead[slot], length[slot]
                    ahead.committed, ahead.remaining = ahead.committed + n, ahead.remaining - n
                    ahead.anchor, ahead.stopped = emitted[slot][n - 1], done[slot] != 0
            self._followed = turn + 1

    def _go_on(self) -> None:
        """Start rounds unless they run, no sequence wants any, or the ring is more than half full."""
        if self.state.running or self.state.unread > self.state.ring // 2:
            return
        self._follow()
        active = [slot for slot in self.slots if not self.ahead[slot].stopped]
        if not active:
            return
        try:
            self._map_pages(active)
        except UsageError:
            if self.state.unread:  # rounds that ran come before the error that ends them
                return
            raise
        if self._stale:
            self._write(active)
        self.state.begin()
        tree = self.budget + 1 if self.limits.block else 1
        self.rounds.launch(len(active) * min(tree, MAX_ROWS // len(active)))

    def _map_pages(self, active: list[int]) -> None:
        """Pages for the next round of every sequence, and as many of those that all their rounds may need as are free.
        Raises UsageError when a next round finds no page."""
        wide, ahead = self.limits.depths + 1, self.ahead
        if not self._stale and all(ahead[s].committed + wide <= ahead[s].limit for s in active):
            return
        self._stale = True
        for slot in active:
            self.pool.trim(slot, ahead[slot].committed)
        for slot in active:
            self.pool.reserve(slot, ahead[slot].committed + wide)
        share = PAGE * (len(self.pool.free) // len(active))
        for slot in active:
            wanted = ahead[slot].committed + max(0, ahead[slot].remaining) + wide
            self.pool.reserve(slot, min(wanted, self.pool.held(slot) + share, self.pool.context))
            ahead[slot].limit = self.pool.held(slot)
        self.device.write(self.page_table, self.pool.table)

    def _write(self, active: list[int]) -> None:
        names = ("committed", "anchor", "remaining", "limit")
        values = {name: np.zeros(self.limits.sequences, np.int32) for name in names}
        for slot in active:
            for name in names:
                values[name][slot] = getattr(self.ahead[slot], name)
        self.state.write(active, self.budget, values)
        for name, array in self._request().items():
            self.device.write(self.request[name], array)
        self._stale = False

    def _returned(self, outcome: _Outcome) -> dict[int, Round]:
        """The oldest round, for the sequences that live still; its record is free then. Raises DeviceError for a token that
        could not be chosen."""
        live = [s for s in outcome.slots if s in self.ahead and outcome.turn >= self.ahead[s].first]
        for slot in live:
            if min(outcome.emitted[slot][: outcome.length[slot]]) < 0:
                raise DeviceError(
                    "the model's logits are NaN; the weights or the numerics are broken, no text was made of them"
                )
        at = outcome.turn % self.state.ring
        seconds = self._seconds(at)
        choice = self.sizes.choice(self.state, at, outcome.slots) if self.sizes else None
        done = {slot: self._one(outcome, slot, seconds, choice) for slot in live}
        self._outcomes.popleft()
        self.state.take()
        return done

    def _seconds(self, at: int) -> dict[str, float]:
        """Times of a record's phases; `host`: how long the GPU was idle before the round."""
        begin, drafted, verified, end = self.state.columns["time"][at].tolist()
        idle = begin - self._ended if self._ended else 0
        self._ended = end
        if self.rounds.nap:
            self._nap = min(LONGEST_NAP, max(self.rounds.nap, 1e-9 * (end - begin) / 8))
        times = {"draft": drafted - begin, "verify": verified - drafted, "commit": end - verified, "host": idle}
        return {name: 1e-9 * t for name, t in times.items()}

    def _one(self, outcome: _Outcome, slot: int, seconds: dict[str, float], choice: Choice | None) -> Round:
        columns, at, state = self.state.columns, outcome.turn % self.state.ring, self.slots[slot]
        n, nodes = outcome.length[slot], int(columns["nodes"][at, slot])
        emitted = outcome.emitted[slot][:n]
        state.committed, state.anchor, state.remaining = state.committed + n, emitted[-1], state.remaining - n
        self.ahead[slot].told = outcome.done[slot] != 0
        tree = DraftTree(*(columns[name][at, slot, :nodes].copy() for name in ("token", "parent", "depth", "score")))
        return Round(tree, columns["path"][at, slot, :n].tolist(), emitted, seconds, choice, self.trace is not None)
