"""Prompts and rounds: the decode loop over step executors, for several sequences at once.

The decoder knows no text and no stop strings; it turns prompt ids into a first token and rounds into accepted tokens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ddtree.errors import DeviceError, UsageError
from ddtree.graph.budget import Choice, Costs, Policy
from ddtree.graph.build import Limits
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.graph.rows import MAX_ROWS, RowTable
from ddtree.graph.step_graph import StepName
from ddtree.runtime.accept_trace import AcceptTrace
from ddtree.runtime.kv import PagePool
from ddtree.runtime.pending import Pending


class StepExecutor(Protocol):
    """Runs one step of the loop."""

    def run(self, inputs: Mapping[str, np.ndarray], rows: RowTable) -> dict[str, np.ndarray]:
        """Inputs and outputs by the names of the step graph."""


class SlotMemory(Protocol):
    """Cache memory that must forget a sequence when it ends."""

    def poison(self, sequence: int, pages: list[int]) -> None:
        """Make the sequence's own memory and the given pages unreadable."""


MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3  # logits divided by it stay finite in fp32


@dataclass(frozen=True)
class Sampling:
    """How a sequence's tokens are chosen. temperature 0 is greedy; top_k 0 and top_p 1 keep every token."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"the temperature must be 0 or positive, found {self.temperature}")
        if self.temperature and not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            limits = f"{MIN_TEMPERATURE}..{MAX_TEMPERATURE:.0f}"
            raise UsageError(f"the temperature must be 0 (greedy) or {limits}, found {self.temperature}")
        if not 0 <= self.top_k < 2**31:
            raise UsageError(f"top-k must be 0 (all tokens) or positive, found {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be above 0 and at most 1, found {self.top_p}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"the seed must be 0..2**63-1, found {self.seed}")


@dataclass
class Round:
    """What one round did for one sequence.

    tree     the tree that was verified         path   accepted nodes of it, the root first
    emitted  the round's new tokens: those of path[1:], then the bonus
    seconds  time of the whole round by phase, shared by the sequences of the round
    choice   under budget auto: why the tree has its size
    forced   whether the accepted length comes from an AcceptTrace
    """

    tree: DraftTree
    path: list[int]
    emitted: list[int]
    seconds: dict[str, float] = field(default_factory=dict)
    choice: Choice | None = None
    forced: bool = False


@dataclass
class _Slot:
    """One sequence: committed positions, the emitted token that is not committed yet, its request, its rounds so far."""

    sampling: Sampling
    committed: int = 0
    anchor: int = 0
    remaining: int = 0
    rounds: int = 0


class Decoder:
    """Sequences in slots 0..limits.sequences-1, decoded in rounds that share at most 64 rows.

    steps   an executor per step          pool    KV pages of all sequences
    caches  every rank's cache memory     vocab   ids are 0..vocab-1
    budget  nodes of a tree               policy  under budget auto: chooses how many of them a round verifies
    trace   forces the accepted lengths
    """

    def __init__(
        self,
        limits: Limits,
        steps: Mapping[StepName, StepExecutor],
        caches: Sequence[SlotMemory],
        *,
        budget: int,
        mask_id: int,
        vocab: int,
        context: int,
        pages: int | None = None,
    ) -> None:
        self.limits, self.steps, self.caches = limits, steps, list(caches)
        self.budget, self.mask_id, self.vocab, self.context = budget, mask_id, vocab, context
        most = context + MAX_ROWS
        self.pool = PagePool(pages or limits.sequences * -(-most // 64), limits.sequences, most)
        self.slots: dict[int, _Slot] = {}
        self.policy: Policy | None = None
        self.trace: AcceptTrace | None = None
        self.pending = Pending(limits.pending)

    def use(self, costs: Costs) -> None:
        """Choose the sizes of trees by what rounds cost."""
        self.policy = Policy(costs, self.limits.sequences, self.limits.depths)

    def costs(self) -> Costs:
        """What sizes are chosen by. Only under budget auto."""
        assert self.policy
        return self.policy.costs

    def start(self, prompt: Sequence[int], sampling: Sampling, max_tokens: int) -> tuple[int, int]:
        """Prefill a prompt in a free slot; returns the slot and the first token. Raises UsageError."""
        self._check(prompt, max_tokens)
        free = next((s for s in range(self.limits.sequences) if s not in self.slots), None)
        if free is None:
            raise UsageError(f"all {self.limits.sequences} sequence slots are in use")
        state = self.slots[free] = _Slot(sampling, remaining=max_tokens)
        try:
            self.pool.reserve(free, len(prompt))
            for first in range(0, len(prompt), self.limits.prefill):
                chunk = np.asarray(prompt[first : first + self.limits.prefill], np.int32)
                token = self._prefill(free, chunk, last=first + len(chunk) == len(prompt))
                state.committed += len(chunk)
        except BaseException:
            self.end(free)
            raise
        state.anchor, state.remaining = token, max_tokens - 1
        if self.policy:
            self.policy.join(free)
        return free, token

    def end(self, slot: int) -> None:
        """Forget a sequence and give its pages back."""
        del self.slots[slot]
        self.pending.drop(slot)
        pages = self.pool.release(slot)
        for cache in self.caches:
            cache.poison(slot, pages)

    def round(self) -> dict[int, Round]:
        """Draft, verify, accept and commit once for every sequence; returns what happened, by slot."""
        if not self.slots:
            return {}
        clock = [time.perf_counter()]
        trees, choice = self._plan()
        clock.append(time.perf_counter())
        rows, out = self._verify(trees)
        if (out["chosen"] < 0).any() or np.isnan(out["logits"]).any():
            raise DeviceError(
                "the model's logits are NaN; the weights or the numerics are broken, no text was made of them"
            )
        if self.trace:
            out = self.trace.force(out, trees, rows, {s: self.slots[s].rounds for s in trees})
        clock.append(time.perf_counter())
        if choice is None or choice.draft:
            self._commit(rows, out)
        else:
            self._store(rows, out)
        clock.append(time.perf_counter())
        seconds = dict(zip(("draft", "verify", "commit"), np.diff(clock).tolist(), strict=True))
        done = {s: self._advance(s, tree, out, seconds, choice) for s, tree in trees.items()}
        if self.policy and choice:
            self.policy.settle(choice, {s: r.emitted for s, r in done.items()})
        return done

    def rehearse(self, slot: int, rows: int) -> None:
        """Everything of a round after its draft, on a tree of `rows` rows below one slot's anchor, to time it: nothing
        is kept. The sequence must not go on afterwards."""
        token = np.full(rows, self.slots[slot].anchor, np.int32)
        parent = np.where(np.arange(rows) == 0, -1, 0).astype(np.int32)
        table, out = self._verify({slot: DraftTree(token, parent, parent + 1, np.zeros(rows))})
        self._commit(table, out)

    def _plan(self) -> tuple[dict[int, DraftTree], Choice | None]:
        """The trees that this round verifies, and why they have their size when the policy chooses it."""
        slots = list(self.slots)
        if not self.limits.block or (self.policy and not self.policy.drafts):
            choice = self.policy.plain(slots) if self.policy else None
            return {s: _root(self.slots[s].anchor) for s in slots}, choice
        trees = self.draft_trees()
        if not self.policy:
            return trees, None
        choice = self.policy.choose(trees)
        return {s: tree.first(choice.sizes[s] + 1) for s, tree in trees.items()}, choice

    def _verify(self, trees: dict[int, DraftTree]) -> tuple[RowTable, dict[str, np.ndarray]]:
        """The target on the rows of trees, and the walk through them."""
        rows, ids = self._tree_rows(trees), np.concatenate([tree.token for tree in trees.values()])
        inputs = {"ids": ids, **self._request(), "remaining": self._each("remaining")}
        return rows, self.steps["verify"].run(inputs, rows)

    def _check(self, prompt: Sequence[int], max_tokens: int) -> None:
        if not len(prompt):
            raise UsageError("the prompt is empty; give at least one token")
        if max_tokens < 1:
            raise UsageError(f"the number of tokens to generate must be at least 1, found {max_tokens}")
        bad = next((t for t in prompt if not 0 <= t < self.vocab), None)
        if bad is not None:
            raise UsageError(f"token id {bad} is outside 0..{self.vocab - 1}")
        if len(prompt) + max_tokens > self.context:
            raise UsageError(
                f"a prompt of {len(prompt)} tokens and {max_tokens} new ones exceed the context of {self.context}; "
                f"shorten the prompt or ask for at most {max(0, self.context - len(prompt))}"
            )

    def _table(
        self,
        sequence: np.ndarray,
        position: np.ndarray,
        *,
        parent: np.ndarray | None = None,
        node: np.ndarray | None = None,
        wanted: np.ndarray | None = None,
        source: np.ndarray | None = None,
    ) -> RowTable:
        """The row table of a step. Rows with tree parents are tree rows."""
        none = np.full(len(sequence), -1, np.int32)
        return RowTable(
            sequence.astype(np.int32),
            position.astype(np.int32),
            none if parent is None else parent,
            none if node is None else node,
            self._each("committed"),
            self.pool.table,
            tree=parent is not None,
            wanted=wanted,
            source=source,
        )

    def _each(self, name: str) -> np.ndarray:
        """One value of every slot, 0 for free slots."""
        values = np.zeros(self.limits.sequences, np.int32)
        for s, state in self.slots.items():
            values[s] = getattr(state, name)
        return values

    def _request(self) -> dict[str, np.ndarray]:
        types = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "seed": np.int64}
        table = {name: np.zeros(self.limits.sequences, dtype) for name, dtype in types.items()}
        for s, state in self.slots.items():
            for name, values in table.items():
                values[s] = getattr(state.sampling, name)
        return table

    def _prefill(self, slot: int, chunk: np.ndarray, *, last: bool) -> int:
        position = self.slots[slot].committed + np.arange(len(chunk))
        wanted = np.array([len(chunk) - 1] if last else [], np.int32)
        rows = self._table(np.full(len(chunk), slot), position, wanted=wanted)
        out = self.steps["prefill"].run({"ids": chunk, **self._request()}, rows)
        if np.isnan(out["logits"]).any() or (out["token"] < 0).any():
            raise DeviceError("the model's logits are NaN after the prompt; the weights or the numerics are broken")
        return int(out["token"][0]) if last else -1

    def draft_trees(self) -> dict[int, DraftTree]:
        """Every slot's tree, as large as the budget allows, after the drafter took in what was pending."""
        self._take_in()
        block, depths = self.limits.block, self.limits.depths
        slots = list(self.slots)
        sequence = np.repeat(slots, block)
        position = np.concatenate([self.slots[s].committed + np.arange(block) for s in slots])
        wanted = np.concatenate([i * block + 1 + np.arange(depths) for i in range(len(slots))]).astype(np.int32)
        ids = np.full((len(slots), block), self.mask_id, np.int32)
        ids[:, 0] = [self.slots[s].anchor for s in slots]
        most = MAX_ROWS - len(slots) if self.policy else MAX_ROWS // len(slots) - 1
        budget = np.full(self.limits.sequences, min(self.budget, most), np.int32)
        inputs = {"ids": ids.reshape(-1), "anchor": self._each("anchor"), "budget": budget}
        out = self.steps["draft"].run(inputs, self._table(sequence, position, wanted=wanted))
        trees = {}
        for s in slots:
            n = int(out["count"][s])
            trees[s] = DraftTree(*(out[f"node_{name}"][s, :n] for name in ("token", "parent", "depth", "score")))
        return trees

    def _tree_rows(self, trees: dict[int, DraftTree]) -> RowTable:
        sizes = [len(t) for t in trees.values()]
        first = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
        parent = np.concatenate([t.parent for t in trees.values()])
        node = np.concatenate([np.arange(n) for n in sizes]).astype(np.int32)
        sequence = np.repeat(list(trees), sizes)
        position = self._each("committed")[sequence] + np.concatenate([t.depth for t in trees.values()])
        parent = np.where(parent < 0, -1, parent + first).astype(np.int32)
        return self._table(sequence, position, parent=parent, node=node)

    def _commit(self, verified: RowTable, out: dict[str, np.ndarray]) -> None:
        path, length = out["path"], out["length"]
        slots = list(self.slots)
        for s in slots:
            self.pool.reserve(s, self.slots[s].committed + int(length[s]))
        sequence = np.repeat(slots, length[slots])
        position = np.concatenate([self.slots[s].committed + np.arange(length[s]) for s in slots])
        source = np.concatenate([verified.of(s)[path[s, : length[s]]] for s in slots]).astype(np.int32)
        inputs = {"path": path, "length": length}
        if "features" in out:
            inputs["features"] = out["features"]
        self.steps["commit"].run(inputs, self._table(sequence, position, source=source))

    def _store(self, verified: RowTable, out: dict[str, np.ndarray]) -> None:
        """Commit a round without a draft: roots alone, whose features wait for the next draft."""
        for s, state in self.slots.items():
            self.pool.reserve(s, state.committed + 1)
            if self.pending.full(s):
                self._take_in()
            self.pending.add(s, state.committed, out["features"][verified.of(s)[0]])
        rows = self._table(verified.sequence, verified.position)
        self.steps["store"].run({"path": out["path"], "length": out["length"]}, rows)

    def _take_in(self) -> None:
        """The drafter's context rows of everything that is pending."""
        if waiting := self.pending.take():
            sequence, position, features = waiting
            rows = self._table(sequence, position, source=np.arange(len(sequence), dtype=np.int32))
            self.steps["context"].run({"features": features}, rows)

    def _advance(
        self, slot: int, tree: DraftTree, out: dict[str, np.ndarray], seconds: dict[str, float], choice: Choice | None
    ) -> Round:
        state, n = self.slots[slot], int(out["length"][slot])
        emitted = [int(t) for t in out["emitted"][slot, :n]]
        state.committed, state.anchor, state.remaining = state.committed + n, emitted[-1], state.remaining - n
        state.rounds += 1
        return Round(tree, [int(i) for i in out["path"][slot, :n]], emitted, seconds, choice, self.trace is not None)


def _root(token: int) -> DraftTree:
    zero = np.zeros(1, np.int32)
    return DraftTree(np.array([token], np.int32), np.array([-1], np.int32), zero, zero.astype(np.float64))
