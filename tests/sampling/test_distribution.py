"""The whole decode loop on a random model with 16 tokens: its text has exactly the target's distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddtree.graph.model import load
from ddtree.runtime.decoder import Decoder, Sampling
from ddtree.runtime.load import cpu_decoder, folders
from tests.fixtures.pair import DrafterShape, TargetShape, write_pair
from tests.fixtures.steps import Steps
from tests.sampling.textbook import LIMIT, distribution, surprise

VOCAB, SEQUENCES, SAMPLES = 16, 12, 600
PROMPT = [3, 5]
TARGET = TargetShape(
    vocab=VOCAB, hidden=32, heads=2, q_lora=16, kv_lora=16, nope=8, rope=8, value=8, dense_width=32, experts=4,
    top_k=1, layers=2,
)  # fmt: skip
DRAFTER = DrafterShape(heads=2, kv_heads=1, head=8, width=32, taps=(0,), layers=((16, True),), block=4)
REQUESTS = [(1.0, 0, 1.0), (0.6, 5, 1.0), (1.4, 0, 0.8)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {"budget": 7, "width": "auto"}
    return write_pair(tmp_path_factory.mktemp("pair"), TARGET, DRAFTER, tree=tree, sequences=SEQUENCES)


@pytest.fixture(scope="module")
def logits(pair: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of the first token [v], of the second after each first [v, v], of the third after each two [v, v, v]."""
    steps = Steps(load(pair, ["sequences=1"]))
    first = steps.prefill(PROMPT)["logits"][-1]
    everything = [0] * VOCAB  # all second tokens as children of the first
    trees = [steps.verify([token, *range(VOCAB)], [-1, *everything])["logits"] for token in range(VOCAB)]
    return first, np.stack([t[0] for t in trees]), np.stack([t[1:] for t in trees])


def exact(logits: tuple[np.ndarray, ...], request_: tuple[float, int, float]) -> np.ndarray:
    """Joint probabilities of the first three tokens [v, v, v]."""
    first, second, third = (np.apply_along_axis(distribution, -1, part, *request_) for part in logits)
    return first[:, None, None] * second[:, :, None] * third


def three_tokens(decoder: Decoder, request_: tuple[float, int, float], seeds: range) -> tuple[np.ndarray, float]:
    """The first three tokens after the prompt for every seed [seeds, 3], and the mean of tokens per round."""
    texts, lengths = {}, []
    for first in range(seeds.start, seeds.stop, SEQUENCES):
        slots = {}
        for seed in range(first, first + SEQUENCES):
            slot, token = decoder.start(PROMPT, Sampling(*request_, seed=seed), 10)
            slots[slot], texts[seed] = seed, [token]
        while any(len(texts[seed]) < 3 for seed in slots.values()):
            for slot, round_ in decoder.round().items():
                texts[slots[slot]] += round_.emitted
                lengths.append(len(round_.emitted))
        for slot in slots:
            decoder.end(slot)
    return np.array([texts[seed][:3] for seed in seeds]), float(np.mean(lengths))


def decoder_of(pair: Path, *, draft: bool) -> Decoder:
    model = load(pair, draft=draft)
    return cpu_decoder(model, folders(model, None, None))


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_text_has_the_targets_distribution(
    request_: tuple[float, int, float], pair: Path, logits: tuple[np.ndarray, ...]
) -> None:
    """Tokens of the prompt's step and of rounds, pairs of them in one round and across rounds, with and without a tree."""
    joint = exact(logits, request_)
    tree, per_round = three_tokens(decoder_of(pair, draft=True), request_, range(SAMPLES))
    plain, one = three_tokens(decoder_of(pair, draft=False), request_, range(SAMPLES))
    assert per_round > 1.2 and one == 1  # the tree took part
    assert (tree == plain).all()  # a seed's text is the same either way
    counts = np.zeros(joint.shape)
    np.add.at(counts, tuple(tree.T), 1)
    for axes in ((), (0,), (2,), (0, 1), (0, 2), (1, 2)):  # all three tokens, pairs, single ones
        assert surprise(counts.sum(axes).reshape(-1), joint.sum(axes).reshape(-1)) < LIMIT, axes
    warmer = exact(logits, (1.4 * request_[0], *request_[1:]))
    assert surprise(counts.sum(0).reshape(-1), warmer.sum(0).reshape(-1)) > LIMIT  # so many samples tell it apart
