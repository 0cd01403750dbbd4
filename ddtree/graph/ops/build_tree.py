"""The draft tree: the most probable prefixes under the drafter's marginals."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddtree.graph.cost import Cost, Load
from ddtree.graph.op import Op, Run
from ddtree.graph.tensor import DType, Tensor


@dataclass
class DraftTree:
    """Nodes of one tree in the order in which they were chosen; node 0 is the root and holds the anchor.

    token, parent, depth  [nodes] int32; parent[0] is -1, and a parent always precedes its children
    score                 [nodes] float64, log-probability of the path under the drafter; 0 for the root
    """

    token: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.token)

    def first(self, nodes: int) -> DraftTree:
        """The tree of the first `nodes` nodes: what a smaller budget would have given."""
        return DraftTree(self.token[:nodes], self.parent[:nodes], self.depth[:nodes], self.score[:nodes])


def best_first(anchor: int, log_prob: np.ndarray, token: np.ndarray, budget: int) -> DraftTree:
    """The `budget` most probable prefixes, best first (DDTree, Ringel & Romano, arXiv 2604.12989, algorithm 1).

    log_prob, token  [depths, k], best candidate first
    budget           nodes below the root; fewer when the candidates are exhausted

    Scores are sums of the fp32 log-probabilities in float64; a sibling's score is (score - own) + next, a child's is
    score + best of the next depth. Equal scores are ordered by the tuple of ranks along the path; a score that is NaN,
    as a drafter with infinite logits gives, counts as -inf there.
    """
    depths, k = log_prob.shape
    lp: list[list[float]] = log_prob.astype(np.float64).tolist()
    nodes: list[tuple[int, int, int, float]] = [(anchor, -1, 0, 0.0)]
    heap: list[tuple[float, tuple[int, ...], int, float]] = []

    def push(score: float, ranks: tuple[int, ...], parent: int) -> None:
        heapq.heappush(heap, (math.inf if math.isnan(score) else -score, ranks, parent, score))

    if budget > 0 and depths and k:
        push(lp[0][0], (0,), 0)
    while heap and len(nodes) <= budget:
        _, ranks, parent, score = heapq.heappop(heap)
        depth, rank = len(ranks), ranks[-1]
        nodes.append((int(token[depth - 1, rank]), parent, depth, score))
        if rank + 1 < k:
            push((score - lp[depth - 1][rank]) + lp[depth - 1][rank + 1], (*ranks[:-1], rank + 1), parent)
        if depth < depths:
            push(score + lp[depth][0], (*ranks, 0), len(nodes) - 1)
    token_, parent_, depth_ = (np.array([node[i] for node in nodes], np.int32) for i in range(3))
    return DraftTree(token_, parent_, depth_, np.array([score for *_, score in nodes], np.float64))


@dataclass(frozen=True, kw_only=True)
class BuildTree(Op):
    """Build each sequence's draft tree from the candidates of its drafted slots (best_first).

    anchor           [sequences] int32, the root's token
    budget           [sequences] int32, nodes below the root
    log_prob, token  [drafted rows, k] (TopK): candidates of the wanted rows of the step's row table, `depths` consecutive
                     ones per sequence that drafts; a sequence without rows gets no tree (count 0)
    node_token, node_parent, node_depth  [sequences, nodes] int32, -1 beyond `count`
    node_score       [sequences, nodes] fp64
    count            [sequences] int32, nodes with the root
    depths           drafted slots per sequence
    """

    anchor: Tensor
    budget: Tensor
    log_prob: Tensor
    token: Tensor
    node_token: Tensor
    node_parent: Tensor
    node_depth: Tensor
    node_score: Tensor
    count: Tensor
    depths: int
    nodes: int
    template = "build_tree"
    outputs = ("node_token", "node_parent", "node_depth", "node_score", "count")

    @classmethod
    def infer(cls, *, anchor: Tensor, nodes: int, **_: Any) -> dict[str, Tensor]:
        """`nodes` entries per sequence."""
        shape = (anchor.shape[0], nodes)
        table = {
            name: Tensor("", shape, DType.INT32, domain="sequences")
            for name in ("node_token", "node_parent", "node_depth")
        }
        return {
            **table,
            "node_score": Tensor("", shape, DType.FP64, domain="sequences"),
            "count": Tensor("", shape[:1], DType.INT32, domain="sequences"),
        }

    def check(self) -> None:
        """Room for the root, and one row of candidates per slot."""
        self.require(self.nodes >= 1, f"a tree has at least its root, found room for {self.nodes} nodes")
        rows = self.anchor.shape[0] * self.depths
        self.require(self.log_prob.shape[0] >= rows, f"candidates for {self.log_prob.shape[0]} slots, {rows} needed")

    def reference(
        self, run: Run, *, anchor: np.ndarray, budget: np.ndarray, log_prob: np.ndarray, token: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Sequence by sequence."""
        sequences = len(anchor)
        ints = [np.full((sequences, self.nodes), -1, np.int32) for _ in range(3)]
        score, count = np.full((sequences, self.nodes), -np.inf), np.zeros(sequences, np.int32)
        drafted = run.rows.sequence if run.rows.wanted is None else run.rows.sequence[run.rows.wanted]
        for s in np.unique(drafted):
            rows = np.flatnonzero(drafted == s)
            tree = best_first(int(anchor[s]), log_prob[rows], token[rows], min(int(budget[s]), self.nodes - 1))
            for table, values in zip((*ints, score), (tree.token, tree.parent, tree.depth, tree.score), strict=True):
                table[s, : len(tree)] = values
            count[s] = len(tree)
        return (*ints, score, count)

    def cost(self, load: Load) -> Cost:
        """Candidates read, nodes written."""
        entries = load.sequences * self.depths * self.log_prob.shape[1]
        return Cost(read=8 * entries, write=20 * load.sequences * self.nodes)
