"""A seed belongs to a text: kimi-tiny's sampled output is the same with and without a tree, whatever its size."""

from __future__ import annotations

import json

import pytest

from ddtree.graph.model import load
from ddtree.runtime.decoder import Decoder, Sampling
from ddtree.runtime.load import cpu_decoder, folders
from tests.fixtures.pair import MODELS, TARGET

PROMPT = json.loads((MODELS.parent / "tests/data/kimi_tiny_greedy.json").read_text())[1]["prompt_ids"]
TOKENS = 14
REQUESTS = [Sampling(0.8, seed=1), Sampling(1.0, 50, 0.9, seed=2), Sampling(1.2, 0, 0.95, seed=(1 << 63) - 1)]
TREES = {
    "root alone": ["tree.budget=0"],
    "chain": ["tree.budget=7", "tree.width=1"],
    "15": ["tree.budget=15", "block_size=5"],
    "31": ["tree.budget=31"],
}


def decoder_of(settings: list[str], *, draft: bool = True) -> Decoder:
    model = load(TARGET, settings, draft=draft)
    return cpu_decoder(model, folders(model, None, None))


def text(decoder: Decoder, sampling: Sampling) -> tuple[list[int], int]:
    """TOKENS sampled tokens, and the rounds that they took."""
    slot, token = decoder.start(PROMPT, sampling, TOKENS + 8)
    tokens, rounds = [token], 0
    while len(tokens) < TOKENS:
        tokens += decoder.round()[slot].emitted
        rounds += 1
    decoder.end(slot)
    return tokens[:TOKENS], rounds


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """Text of each request without a drafter."""
    decoder = decoder_of([], draft=False)
    return [text(decoder, request_)[0] for request_ in REQUESTS]


@pytest.mark.parametrize("name", TREES)
def test_same_text_with_a_tree(name: str, plain: list[list[int]]) -> None:
    decoder = decoder_of(TREES[name])
    found = [text(decoder, request_) for request_ in REQUESTS]
    assert [tokens for tokens, _ in found] == plain
    assert any(rounds < TOKENS - 1 for _, rounds in found) == (name != "root alone")  # the tree took part


def test_other_seeds_give_other_texts() -> None:
    decoder = decoder_of([], draft=False)
    texts = {tuple(text(decoder, Sampling(1.0, seed=seed))[0]) for seed in (0, 1, 2, 1 << 32, (1 << 63) - 1)}
    assert len(texts) == 5
