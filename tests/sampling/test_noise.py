"""The counter-based noise: Philox against published vectors, and what the Gumbel-max trick makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.ops.sample import gumbel, philox
from tests.sampling.textbook import philox4x32

# Random123's kat_vectors, philox4x32 10 rounds: counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_textbook_philox_is_the_published_one(counter: str, key: str, result: str) -> None:
    assert philox4x32(words(counter), words(key)) == words(result)


def test_philox_of_the_zero_counter() -> None:
    assert philox(seed=0, position=0, count=1)[0] == 0x6627E8D5


@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFF, 1 << 32, 0x299F31D0A4093822, (1 << 63) - 1])
@pytest.mark.parametrize("position", [0, 1, 4095, 1 << 20, (1 << 31) - 1])
def test_philox_of_tokens(seed: int, position: int) -> None:
    """The key is the seed, low word first; the counter is (token, position, 0, 0)."""
    key = [seed & 0xFFFFFFFF, seed >> 32]
    ours = philox(seed, position, 200)
    assert ours.dtype == np.uint32
    for token in (0, 1, 2, 63, 199):
        assert ours[token] == philox4x32([token, position, 0, 0], key)[0]


def test_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    assert (gumbel(7, 11, 1000)[:50] == gumbel(7, 11, 50)).all()


def test_noise_is_gumbel() -> None:
    """Largest distance between the empirical and the true distribution function (Kolmogorov and Smirnov), 1e5 draws."""
    draws = np.sort(gumbel(5, 3, 100_000).astype(np.float64))
    assert np.isfinite(draws).all()
    truth = np.exp(-np.exp(-draws))
    assert np.abs(truth - (np.arange(len(draws)) + 0.5) / len(draws)).max() < 1.95 / np.sqrt(len(draws))  # p = 0.001
