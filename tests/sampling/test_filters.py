"""Temperature, top-k and top-p, and the draws of the sample op, against a textbook implementation."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.numerics import Numerics
from ddtree.graph.op import Run
from ddtree.graph.ops.sample import Sample, allowed
from ddtree.graph.rows import RowTable
from ddtree.graph.tensor import DType, Tensor
from tests.sampling.textbook import LIMIT, distribution, surprise

VOCAB = 16
REQUESTS = [(0.3, 0, 1.0), (1.0, 0, 1.0), (2.5, 0, 1.0), (1.0, 5, 1.0), (0.8, 1, 1.0), (1.0, 0, 0.7), (1.5, 0, 0.05),
            (0.7, 6, 0.8), (1.3, 40, 0.95)]  # fmt: skip


def kept(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> set[int]:
    return set(np.flatnonzero(allowed(logits, temperature, top_k, top_p) > -np.inf).tolist())


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_kept_tokens_and_their_weights(request_: tuple[float, int, float]) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        logits = (2 * rng.standard_normal(VOCAB)).astype(np.float32)
        ours = np.exp(allowed(logits, *request_).astype(np.float64))
        assert np.abs(ours / ours.sum() - distribution(logits, *request_)).max() < 1e-6


def test_top_k_comes_before_top_p() -> None:
    """Of 4, 3, 2, 1 tenths the top three hold 0.9: two of them are 7/9 of that, and 0.75 needs no third. Measured against
    all four, two would be 0.7 and 0.75 would need the third."""
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert kept(logits, 1.0, 3, 0.75) == {0, 1}
    assert kept(logits, 1.0, 0, 0.75) == {0, 1, 2}


def test_ties_keep_the_lower_id() -> None:
    logits = np.array([1, 2, 2, 0, 2], np.float32)
    assert kept(logits, 1.0, 2, 1.0) == {1, 2}
    assert kept(np.zeros(5, np.float32), 1.0, 0, 0.5) == {0, 1, 2}


def draw(logits: np.ndarray, request_: tuple[float, int, float], seed: int, count: int) -> np.ndarray:
    """One token for each of `count` successive positions, all with the same logits."""
    zero = np.zeros(count, np.int32)
    rows = RowTable(zero, np.arange(count, dtype=np.int32), zero - 1, zero, zero[:1], zero[None, :1], tree=True)
    types = {"temperature": DType.FP32, "top_k": DType.INT32, "top_p": DType.FP32, "seed": DType.INT64}
    op = Sample(
        logits=Tensor("logits", (count, VOCAB), DType.FP32),
        token=Tensor("token", (count,), DType.INT32),
        **{name: Tensor(name, (1,), dtype) for name, dtype in types.items()},
    )
    values = {name: np.array([value]) for name, value in zip(types, (*request_, seed), strict=True)}
    return op.reference(Run(Numerics(), rows), logits=np.tile(logits, (count, 1)), **values)


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_draws_have_the_distribution(request_: tuple[float, int, float]) -> None:
    """So have the pairs of neighbouring positions that of independent draws: one seed's noise does not repeat."""
    logits = np.random.default_rng(3).standard_normal(VOCAB).astype(np.float32)
    tokens = draw(logits, request_, seed=17, count=6000)
    p = distribution(logits, *request_)
    assert surprise(np.bincount(tokens, minlength=VOCAB), p) < LIMIT
    pairs = np.bincount(tokens[:-1] * VOCAB + tokens[1:], minlength=VOCAB**2)
    assert surprise(pairs, np.outer(p, p).reshape(-1)) < LIMIT


def test_chi_square_sees_a_wrong_distribution() -> None:
    logits = np.random.default_rng(3).standard_normal(VOCAB).astype(np.float32)
    counts = np.bincount(draw(logits, (1.0, 0, 1.0), seed=17, count=6000), minlength=VOCAB)
    assert surprise(counts, distribution(logits, 1.2)) > 2 * LIMIT
    assert surprise(counts, distribution(logits, 1.0, top_k=15)) == np.inf
