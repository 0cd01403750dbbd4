"""TopK: tokens exactly, log-probabilities within fp32 rounding, ties to the lower id, a row alone as in company."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import TopK
from ddtree.graph.rows import RowTable
from tests.ops.harness import (
    ROW_COUNTS,
    assert_same_bits,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    reference,
    tensor,
)

VOCAB = 4096


def candidates(rows: int, vocab: int, k: int, domain: str = "rows") -> Op:
    return make(TopK, logits=tensor(rows, vocab, dtype="fp32", domain=domain), k=k)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (4 * rng.standard_normal(shape)).astype(np.float32)


def check(op: Op, logits: np.ndarray, rows: RowTable, run: Any = emulate) -> None:
    got, want = run(op, {"logits": logits}, rows), reference(op, {"logits": logits}, rows)
    assert_same_bits(got["token"], want["token"], "token")
    # Both add up to 163,840 exponentials in fp32, in different orders, and round the logarithm, which is about 12.
    np.testing.assert_allclose(got["log_prob"], want["log_prob"], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, rng: np.random.Generator) -> None:
    check(candidates(64, VOCAB, 15), normal(rng, rows, VOCAB), decode_rows([3] * rows))


@pytest.mark.parametrize(("vocab", "k"), [(1, 1), (3, 3), (63, 63), (4095, 2), (4097, 63), (9001, 1), (20480, 63)])
def test_any_vocabulary(vocab: int, k: int, rng: np.random.Generator) -> None:
    check(candidates(8, vocab, k), normal(rng, 3, vocab), decode_rows([3] * 3))


@pytest.mark.parametrize("k", [12, 63])
def test_the_production_vocabulary(k: int, rng: np.random.Generator) -> None:
    check(candidates(8, 163840, k), normal(rng, 2, 163840), decode_rows([3] * 2))


def test_log_probabilities_are_those_of_fp64(rng: np.random.Generator) -> None:
    logits = normal(rng, 4, 9001)
    got = emulate(candidates(8, 9001, 63), {"logits": logits}, decode_rows([3] * 4))
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True))
    np.testing.assert_allclose(got["log_prob"], -np.sort(-exact, axis=1)[:, :63], rtol=1e-6, atol=1e-5)


def test_equal_logits_take_the_lower_id(rng: np.random.Generator) -> None:
    rows = decode_rows([3] * 5)
    logits = np.round(normal(rng, 5, 9001))
    logits[1] = 2.5
    logits[2] = np.where(rng.random(9001) < 0.5, np.float32(-0.0), np.float32(0.0))  # equal, whatever the sign
    logits[3] = np.sort(logits[3])
    logits[4] = np.sort(logits[4])[::-1]
    check(candidates(8, 9001, 63), logits, rows)


def test_logits_that_are_no_numbers(rng: np.random.Generator) -> None:
    logits = normal(rng, 4, 9001)
    logits[0, [0, 70, 5000]] = np.nan
    logits[1, 40:] = -np.inf
    logits[2, 4096:8192] = -np.inf  # a whole chunk without probability
    logits[3, 17] = np.inf
    with np.errstate(invalid="ignore"):
        check(candidates(8, 9001, 63), logits, decode_rows([3] * 4))


def test_wanted_rows(rng: np.random.Generator) -> None:
    rows = dataclasses.replace(prompt_rows([8] * 4), wanted=np.flatnonzero(np.arange(32) % 8).astype(np.int32))
    check(candidates(32, VOCAB, 15, "wanted"), normal(rng, 28, VOCAB), rows)


def test_more_rows_than_a_grid_holds(rng: np.random.Generator) -> None:
    check(candidates(150, 100, 5), normal(rng, 140, 100), prompt_rows([140]))


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    check_row_invariance(candidates(64, 9001, 15), {"logits": normal(rng, 64, 9001)}, decode_rows([3] * 64))


def test_every_schedule(rng: np.random.Generator) -> None:
    logits = np.round(4 * normal(rng, 3, 9001)) / 4
    check_schedules(candidates(4, 9001, 15), {"logits": logits}, decode_rows([3] * 3))


@pytest.mark.parametrize("k", [64, 100])
def test_too_many_candidates_are_refused(k: int, rng: np.random.Generator) -> None:
    with pytest.raises(OpError, match=rf"1\.\.63 candidates, {k}"):
        check(candidates(8, VOCAB, k), normal(rng, 1, VOCAB), decode_rows([3]))


def check_short_chunks(run: Any = emulate) -> None:
    """The second chunk of the vocabulary has one logit and not the 63 that are asked for, under the watch for races."""
    logits = normal(np.random.default_rng(2), 1, 4097)
    check(candidates(1, 4097, 63), logits, decode_rows([3]), functools.partial(run, mode="check"))


def test_a_chunk_of_few_logits() -> None:
    check_short_chunks()


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    logits = np.round(normal(rng, 3, 9001) * 4) / 4
    logits[1] = -np.abs(logits[1])
    logits[1, 10:40] = np.where(rng.random(30) < 0.5, np.float32(-0.0), np.float32(0.0))
    logits[2] += 3.7
    check(candidates(4, 9001, 15), logits, decode_rows([3] * 3), run)
    check_short_chunks(run)
