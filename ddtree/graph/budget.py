"""The size of draft trees under `budget: auto`: the nodes that pay for themselves, round by round.

A tree is built best first at its largest, so that the tree of n nodes is its first n nodes. The tokens expected of it are
1 + the sum of its nodes' probabilities of being accepted; its price is what the round costs at that many rows. Of all
sizes the one with most tokens per millisecond is taken. The price is a staircase and its slope is not monotone, so every
size is looked at. Several sequences share the rows of a round: their nodes are taken in order of probability, and each
keeps its root. A chain is no candidate of its own: among trees of n nodes the first n of the best-first order have the
largest sum, so where a chain is best the tree is that chain.

The drafter's probabilities are corrected per depth by what came true (Policy.factors). A round without a draft is a
candidate too. Whether drafting pays is booked in rounds lost against decoding without it; when PATIENCE of them are
lost, rounds stop drafting, and every PROBE-th drafts again (less often where that would take more than a PRICE-th of the
time). A tree that was not verified is judged all the same, by the tokens that later rounds produce, so that a probe need
not verify a single node to learn.

Nothing here changes a token. The kernels of include/ddtree/choose_budget.cuh make the same decisions bit for bit: hence the
exponential of its own, sums of a fixed shape and no fused multiply-add. Sources: DDTree (arXiv 2604.12989) for the sum of
path probabilities; CaDDTree (arXiv 2606.01813) for choosing by cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ddtree.graph.buckets import BUCKETS, bucket
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.graph.rows import MAX_ROWS

PRIOR = 1.0  # observations that speak for the drafter's own probabilities before there are any
DECAY = 0.95  # weight of the past when an observation is added
PATIENCE = 1.5  # rounds lost against decoding without drafts after which drafting stops
PROBE = 16  # where drafting has stopped, every PROBE-th round drafts
PRICE = 40.0  # unless a draft costs more than a PRICE-th of the rounds between

LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
ROUND = 1.5 * 2.0**52  # adding and subtracting it rounds to a whole number
TERMS = tuple(1.0 / float(np.prod(np.arange(1, n + 1, dtype=np.float64))) for n in range(13, -1, -1))  # 1 / n!


def exponential(x: np.ndarray) -> np.ndarray:
    """exp of fp64 log-probabilities by additions and products alone, within 2 ulp. Above 0 counts as 0; below -700 and
    NaN give 0."""
    kept = np.where(x >= -700.0, np.minimum(x, 0.0), 0.0)  # NaN compares false
    whole = (kept * LOG2E + ROUND) - ROUND
    rest = (kept - whole * LN2_HIGH) - whole * LN2_LOW
    total = np.full_like(rest, TERMS[0])
    for term in TERMS[1:]:
        total = total * rest + term
    return np.where(x >= -700.0, np.ldexp(total, whole.astype(np.int32)), 0.0)


def folded(values: np.ndarray) -> np.float64:
    """Sum of at most 64 values: halves are added until one is left, as the lanes of a warp do."""
    wide = np.zeros(MAX_ROWS)
    wide[: len(values)] = values
    while len(wide) > 1:
        wide = wide[: len(wide) // 2] + wide[len(wide) // 2 :]
    return np.float64(wide[0])


def running(values: np.ndarray) -> np.ndarray:
    """Sums of the first 1, 2, ... of at most 64 values: six rounds, each adding what stands 1, 2, 4, ... places before."""
    total, distance = values.astype(np.float64), 1
    while distance < len(total):
        total = np.concatenate([total[:distance], total[distance:] + total[:-distance]])
        distance *= 2
    return total


@dataclass(frozen=True)
class Costs:
    """What rounds cost, in milliseconds.

    verify  of everything after the draft, for each row capacity of BUCKETS
    draft   what a draft adds: the drafter, its context rows and the tree
    """

    verify: tuple[float, ...]
    draft: float

    @staticmethod
    def of(verify: Mapping[int, float], draft: float) -> Costs:
        """From times at some row counts, 1 and MAX_ROWS among them; the others lie on straight lines between those."""
        rows = sorted(verify)
        return Costs(tuple(float(np.interp(b, rows, [verify[r] for r in rows])) for b in BUCKETS), float(draft))

    def at(self, rows: int) -> float:
        """Milliseconds after the draft with that many rows."""
        return self.verify[BUCKETS.index(bucket(rows))]

    @property
    def table(self) -> np.ndarray:
        """As the kernels read it, fp64: `verify`, `draft`, and for each row capacity 1 / (both)."""
        verify = np.array(self.verify)
        return np.concatenate([verify, [self.draft], 1.0 / (verify + self.draft)])


@dataclass(frozen=True)
class Choice:
    """What a round does, and why.

    draft        whether it drafts          probe  whether it does only to learn if drafting would pay again
    sizes        nodes of each slot's tree, the root not counted
    rows         of all sequences together
    expected     tokens of all sequences    ms     cost of the round         plain  cost of a round without a draft
    lost         rounds lost against decoding without drafts, before this one; 0..PATIENCE
    calibration  by slot: how often a token of that depth came true, over how often the drafter said so
    """

    draft: bool
    probe: bool
    sizes: dict[int, int]
    rows: int
    expected: float
    ms: float
    plain: float
    lost: float
    calibration: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For the trace."""
        return {
            "draft": self.draft, "probe": self.probe, "rows": self.rows, "expected_tokens": self.expected,
            "milliseconds": self.ms, "plain_milliseconds": self.plain, "lost_rounds": self.lost,
            "calibration": {str(slot): list(factors) for slot, factors in self.calibration.items()},
        }  # fmt: skip


class Policy:
    """Chooses sizes and learns from what was accepted.

    hits, mass  [slots, depths] fp64: how often a child of an accepted node at that depth was accepted, and how often the
                drafter expected it; both decayed
    trees       each slot's last tree at its largest       walk  the node of it that the slot's tokens have reached, -1
                when they left it or its tree is used up
    drafts      whether the next round drafts
    lost        rounds lost (Choice)                       waited  rounds since the last draft
    """

    def __init__(self, costs: Costs, sequences: int, depths: int) -> None:
        self.costs = costs
        self.hits, self.mass = np.zeros((sequences, depths)), np.zeros((sequences, depths))
        self.trees: dict[int, DraftTree] = {}
        self.walk = np.full(sequences, -1, np.int32)
        self.drafts, self.lost, self.waited = True, 0.0, 0

    def join(self, slot: int) -> None:
        """A sequence begins: nothing is known of its text, so drafting gets its chance."""
        self.hits[slot], self.mass[slot], self.walk[slot] = 0, 0, -1
        self.drafts, self.lost, self.waited = True, 0.0, 0

    def factors(self, slot: int) -> np.ndarray:
        """[depths + 1]: what the probability of a path to each depth is multiplied by. The ratio of children accepted to
        children expected, multiplied up from the root."""
        ratio = (PRIOR + self.hits[slot]) / (PRIOR + self.mass[slot])
        return np.multiply.accumulate(np.concatenate([[1.0], ratio]))

    def plain(self, slots: Sequence[int]) -> Choice:
        """A round without a draft."""
        ms, n = self.costs.at(len(slots)), len(slots)
        self.waited += 1
        return Choice(False, False, dict.fromkeys(slots, 0), n, float(n), ms, ms, self.lost)

    def choose(self, trees: Mapping[int, DraftTree]) -> Choice:
        """The size of each slot's tree, of trees at their largest.

        A node's place in the common order is the least probability of its tree so far, since a tree is cut, not thinned.
        Equal ones go by slot. If no size beats a round without a draft, the draft is spent all the same, and the size is
        taken that loses least.
        """
        slots, probe = list(trees), self.lost >= PATIENCE
        chance = {s: self._chances(s, tree) for s, tree in trees.items()}
        least = np.concatenate([np.minimum.accumulate(p) for p in chance.values()])
        owner = np.repeat(slots, [len(p) for p in chance.values()])
        order = np.argsort(-least, kind="stable")[: MAX_ROWS - len(slots)]
        expected = len(slots) + np.concatenate([[0.0], running(np.concatenate(list(chance.values()))[order])])
        n = self._best(expected, len(slots))
        taken = owner[order[:n]]
        self.trees, self.waited = dict(trees), 0
        self.walk[slots] = 0
        rows = len(slots) + n
        return Choice(
            True, probe, {s: int((taken == s).sum()) for s in slots}, rows, float(expected[n]),
            self.costs.at(rows) + self.costs.draft, self.costs.at(len(slots)), self.lost,
            {s: tuple(self.factors(s)[1:].tolist()) for s in slots},
        )  # fmt: skip

    def _chances(self, slot: int, tree: DraftTree) -> np.ndarray:
        """Calibrated probability of each node but the root."""
        return np.minimum(1.0, exponential(tree.score[1:]) * self.factors(slot)[tree.depth[1:]])

    def _best(self, expected: np.ndarray, sequences: int) -> int:
        """The best number of nodes, the fewest of equal ones."""
        places = [BUCKETS.index(bucket(sequences + n)) for n in range(len(expected))]
        table, plain = self.costs.table, self.costs.at(sequences)
        ms, inverse = table[places] + self.costs.draft, table[len(BUCKETS) + 1 :][places]
        best = int(np.argmax(expected * inverse))
        if expected[best] * plain > ms[best] * sequences:
            return best
        return int(np.argmax(expected * plain - ms * sequences))

    def settle(self, choice: Choice, emitted: Mapping[int, Sequence[int]]) -> None:
        """Learn from the tokens of a round, by slot."""
        for slot, tokens in emitted.items():
            for token in tokens:
                self._follow(slot, int(token))
        if choice.draft:
            made = sum(len(tokens) for tokens in emitted.values())
            lost = self.lost + (choice.ms / choice.plain - made / len(emitted))
            self.lost = min(PATIENCE, max(0.0, lost))
        rounds = self.waited + 1  # with the next one
        probe = rounds >= PROBE and rounds * choice.plain >= PRICE * self.costs.draft
        self.drafts = self.lost < PATIENCE or probe

    def _follow(self, slot: int, token: int) -> None:
        """One more token: did the slot's tree hold it? A node without children says nothing."""
        node = int(self.walk[slot])
        if node < 0:
            return
        tree = self.trees[slot]
        child = tree.parent == node
        hit = np.flatnonzero(child & (tree.token == token))
        self.walk[slot] = hit[0] if len(hit) else -1
        if child.any():
            depth = int(tree.depth[node])
            with np.errstate(invalid="ignore"):  # -inf - -inf: a child that cannot be
                share = exponential(tree.score - tree.score[node])
            self.hits[slot, depth] = DECAY * self.hits[slot, depth] + float(len(hit) > 0)
            self.mass[slot, depth] = DECAY * self.mass[slot, depth] + folded(np.where(child, share, 0.0))
