"""Texts with the tree of every position, and what decoding them would cost under a table of costs.

A drafter sees only what is committed, so its tree at a position is the same however the text got there. One slow pass, a
token a round with a draft each, therefore tells what any budget and any policy would have done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ddtree.graph.budget import Choice, Costs, Policy
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.runtime.decoder import Sampling
from tests.runtime.decoders import decoder, rounds

BEYOND = 8  # tokens after a text that its last trees may hold

# Milliseconds of a step by rows on eight GPUs: docs/performance.md, "serial" and with everything overlapped.
CURVES = {
    "PRO 6000": Costs.of({1: 4.9, 8: 11.9, 16: 18.3, 32: 28.5, 64: 41.8}, 1.0),
    "PRO 6000 overlapped": Costs.of({1: 2.8, 8: 8.9, 16: 14.8, 32: 24.0, 64: 35.3}, 1.0),
    "H200": Costs.of({1: 2.1, 8: 4.6, 16: 7.2, 32: 10.9, 64: 15.5}, 0.5),
    "H200 overlapped": Costs.of({1: 1.1, 8: 3.4, 16: 5.7, 32: 9.3, 64: 13.7}, 0.5),
}


@dataclass(frozen=True)
class Text:
    """ids: the tokens, the one from the prompt first and BEYOND more than count; trees: of positions 0..tokens-1."""

    ids: list[int]
    trees: list[DraftTree]

    @property
    def tokens(self) -> int:
        """Tokens that count: those after the first."""
        return len(self.trees)

    @cached_property
    def _paths(self) -> list[list[int]]:
        """Nodes of each position's tree that hold the tokens after it, the root not among them."""
        paths = []
        for position, tree in enumerate(self.trees):
            children = {(int(p), int(t)): i for i, (p, t) in enumerate(zip(tree.parent, tree.token, strict=True))}
            node, path = 0, list[int]()
            for token in self.ids[position + 1 :]:
                if (node := children.get((node, token), 0)) == 0:
                    break
                path.append(node)
            paths.append(path)
        return paths

    def accepted(self, position: int, nodes: int) -> list[int]:
        """What a round emits at a position when it verifies the tree's first `nodes` nodes below the root."""
        drafted = sum(node <= nodes for node in self._paths[position])
        return self.ids[position + 1 : position + 2 + drafted]

    def after(self, other: Text) -> Text:
        """Both texts as one, without what lies beyond the first."""
        return Text([*other.ids[: other.tokens], *self.ids], [*other.trees, *self.trees])

    def wrong(self) -> Text:
        """The text of a drafter that is as sure as before and never right."""
        trees = []
        for tree in self.trees:
            token = tree.token.copy()
            token[1:] = -2 - token[1:]
            trees.append(replace(tree, token=token))
        return Text(self.ids, trees)


class _Recorder(Policy):
    """Drafts every round and verifies roots alone."""

    def __init__(self) -> None:
        super().__init__(CURVES["H200"], 1, 7)
        self.seen: list[DraftTree] = []

    drafts = True

    def choose(self, trees: Mapping[int, DraftTree]) -> Choice:
        """Keep the tree."""
        self.seen.append(trees[0])
        return replace(self.plain([0]), draft=True)

    def settle(self, choice: Choice, emitted: Mapping[int, Sequence[int]]) -> None:
        """Learn nothing."""


def text(prompt: Sequence[int], tokens: int, sampling: Sampling | None = None) -> Text:
    """`tokens` tokens after the first one that follows a prompt."""
    d = decoder("tree={budget: auto, costs: {cpu: {verify: {1: 1.0, 64: 1.0}, draft: 1.0}}}")
    own, d.policy = d.policy, (recorder := _Recorder())
    try:
        ids, _ = rounds(d, prompt, tokens + BEYOND, sampling)
    finally:
        d.policy = own
    return Text(ids, recorder.seen[:tokens])


def cost(text: Text, costs: Costs, budget: int) -> float:
    """Milliseconds of a text under a fixed budget. The last round counts by the part of it that the text needs."""
    position, ms = 0, 0.0
    while position < text.tokens:
        nodes = min(budget, len(text.trees[position]) - 1)
        made = len(text.accepted(position, nodes))
        ms += (costs.at(1 + nodes) + costs.draft) * min(1.0, (text.tokens - position) / made)
        position += made
    return ms


def plain(text: Text, costs: Costs) -> float:
    """Milliseconds of a text without drafts."""
    return text.tokens * costs.at(1)


def auto(text: Text, costs: Costs) -> tuple[float, list[Choice]]:
    """Milliseconds of a text under `budget: auto`, and what it chose."""
    policy, position, ms, made = Policy(costs, 1, 7), 0, 0.0, list[Choice]()
    policy.join(0)
    while position < text.tokens:
        choice = policy.choose({0: text.trees[position]}) if policy.drafts else policy.plain([0])
        emitted = text.accepted(position, choice.sizes[0])
        policy.settle(choice, {0: emitted})
        ms += choice.ms * min(1.0, (text.tokens - position) / len(emitted))
        position += len(emitted)
        made.append(choice)
    return ms, made
