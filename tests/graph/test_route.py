"""The choice of experts: the bias selects, the score weighs."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.numerics import Precision, sigmoid
from ddtree.graph.ops import Route
from tests.ops.harness import reference
from tests.ops.operands import make, tensor, weight
from tests.ops.tables import decode_rows

EXPERTS, TOP_K, SCALE = 16, 4, 2.827


def route(logits: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Experts and gates of rows whose router logits are given (small integers, which BF16 holds)."""
    op = make(Route, x=tensor(64, EXPERTS), weight=weight(EXPERTS, EXPERTS), bias=weight(EXPERTS, dtype="fp32"), top_k=TOP_K,
              scale=SCALE)  # fmt: skip
    inputs = {
        "x": logits.astype(np.float32),
        "weight": np.eye(EXPERTS, dtype=np.float32),
        "bias": bias.astype(np.float32),
    }
    made = reference(op, inputs, decode_rows([0] * len(logits)), Precision.FP32)
    return made["ids"], made["gates"]


def test_a_huge_bias_chooses_but_does_not_weigh() -> None:
    bias = np.zeros(EXPERTS)
    bias[[3, 8, 9, 12]] = [40, 30, 20, 10]
    logits = np.zeros((1, EXPERTS))
    logits[0, [3, 8, 9, 12, 5]] = [-4, -2, 0, 1, 9]
    ids, gates = route(logits, bias)
    assert ids.tolist() == [[3, 8, 9, 12]]
    score = sigmoid(np.array([-4, -2, 0, 1], np.float32))
    assert gates[0] == pytest.approx(SCALE * score / score.sum(), rel=1e-6)


def test_a_hugely_negative_bias_excludes() -> None:
    logits = np.arange(EXPERTS)[None] - 8
    bias = np.where(np.arange(EXPERTS) >= 12, -100, 0)
    ids, _ = route(logits, bias)
    assert ids.tolist() == [[11, 10, 9, 8]]


def test_equal_scores_take_the_lower_expert() -> None:
    ids, gates = route(np.zeros((2, EXPERTS)), np.zeros(EXPERTS))
    assert ids.tolist() == [[0, 1, 2, 3]] * 2 and np.allclose(gates, SCALE / TOP_K)


def test_random_rows_against_sorting() -> None:
    rng = np.random.default_rng(0)
    logits, bias = rng.integers(-6, 7, (40, EXPERTS)), rng.integers(-4, 5, EXPERTS) / 16
    ids, gates = route(logits, bias)
    score = sigmoid(logits.astype(np.float32))
    for r in range(40):
        by_rule = sorted(range(EXPERTS), key=lambda e: (-(score[r, e] + np.float32(bias[e])), e))[:TOP_K]
        assert ids[r].tolist() == by_rule
        assert gates[r] == pytest.approx(SCALE * score[r, by_rule] / score[r, by_rule].sum(), rel=1e-5)
