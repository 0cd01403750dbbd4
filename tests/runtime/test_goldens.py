"""The shipped tiny model on the CPU, against traces of an independent implementation: ids, accepted lengths, trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddtree.runtime.decoder import Round
from tests.runtime.decoders import GOLDENS, PLAIN, decode, decoder, rounds

CLOSE = 0.002  # logit gap below which another order of sums may choose the other token
MODES = {
    "chain7": ("tree.width=1", "tree.budget=7"),
    "tree7": ("tree.budget=7",),
    "tree15": ("tree.budget=15",),
    "tree31": ("tree.budget=31",),
}


def certain(golden: dict[str, Any]) -> int:
    """Tokens up to the first choice that rounding could turn."""
    return next((i for i, gap in enumerate(golden["gaps"]) if gap < CLOSE), len(golden["gaps"]))


@pytest.mark.parametrize("golden", GOLDENS, ids=range(len(GOLDENS)))
def test_one_token_at_a_time(golden: dict[str, Any]) -> None:
    sure = certain(golden)
    made, lengths = decode(decoder(PLAIN), golden["prompt_ids"], sure)
    assert made == golden["greedy_ids"][:sure]
    assert lengths == [1] * (sure - 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("golden", GOLDENS, ids=range(len(GOLDENS)))
def test_trees_give_the_same_tokens_and_the_published_lengths(golden: dict[str, Any], mode: str) -> None:
    sure, wanted = certain(golden), golden["accept"][mode]["lengths"]
    made, done = rounds(decoder(*MODES[mode]), golden["prompt_ids"], sure)
    assert made[:sure] == golden["greedy_ids"][:sure]
    lengths = [len(r.emitted) for r in done]
    compared = [n for n, reach in zip(lengths, 1 + np.cumsum(lengths), strict=True) if reach <= sure]
    assert compared == wanted[: len(compared)] and len(compared) >= len(wanted) - 1
    if mode == "tree15":
        check_trees(golden, done)


def check_trees(golden: dict[str, Any], done: list[Round]) -> None:
    start = len(golden["prompt_ids"])
    for expected, made in zip(golden["rounds_tree15"], done, strict=False):
        assert start == expected["start"] and made.tree.token[0] == expected["anchor"]
        assert made.tree.token.tolist() == expected["tokens"]
        assert made.tree.parent.tolist() == expected["parent"]
        assert made.tree.depth.tolist() == expected["depth"]
        np.testing.assert_allclose(made.tree.score[1:], expected["score"], atol=1e-4)
        assert made.path == expected["path"] and made.emitted[-1] == expected["bonus"]
        assert made.emitted[:-1] == [expected["tokens"][i] for i in expected["path"][1:]]
        start += len(made.emitted)
    assert len(done) >= len(golden["rounds_tree15"]) == 3
