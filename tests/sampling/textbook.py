"""Sampling as textbooks state it, slow and in fp64 or plain integers, and a chi-square test to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_WORD = 0xFFFFFFFF


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Ten rounds of Philox on four 32-bit counter words and two key words: four random words.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), figure 4, and Random123's philox.h.
    """
    (a, b, c, d), (k, l) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k, right & _WORD, (left >> 32) ^ d ^ l, left & _WORD
        k, l = (k + 0x9E3779B9) & _WORD, (l + 0xBB67AE85) & _WORD
    return [a, b, c, d]


def distribution(logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """Probabilities [vocab]: softmax(logits / temperature), the top_k largest of them, then the smallest prefix of those,
    renormalised and sorted, whose mass reaches top_p. Equal logits: the lower id first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: top_k or len(order)]
    p = np.exp((logits[order].astype(np.float64) - max(logits)) / temperature)
    p /= p.sum()
    count = next((n for n in range(1, len(p) + 1) if p[:n].sum() >= top_p), len(p))
    kept = np.zeros(len(logits))
    kept[order[:count]] = p[:count] / p[:count].sum()
    return kept


def surprise(counts: np.ndarray, expected: np.ndarray) -> float:
    """How unlikely `counts` are under the probabilities `expected` of the same shape, in standard deviations of a normal.

    Pearson's chi-square; cells that should hold fewer than five are pooled, and the statistic becomes normal by Wilson and
    Hilferty's cube root (1931). Infinite when something impossible was counted.
    """
    if counts[expected == 0].any():
        return np.inf
    mean = expected * counts.sum()
    rare = mean < 5
    seen, mean = np.append(counts[~rare], counts[rare].sum()), np.append(mean[~rare], mean[rare].sum())
    seen, mean = seen[mean > 0], mean[mean > 0]
    if len(mean) < 2:
        return 0.0
    freedom = len(mean) - 1
    statistic = ((seen - mean) ** 2 / mean).sum()
    return float(((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / np.sqrt(2 / (9 * freedom)))


LIMIT = 4.0  # standard deviations; seeds are fixed, so that a test that passes goes on passing
