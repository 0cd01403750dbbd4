"""Embed: exact copies of table rows."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import Embed
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
    random_inputs,
    reference,
    tensor,
    weight,
)


def embed(rows: int, vocab: int, hidden: int) -> Op:
    return make(Embed, ids=tensor(rows, dtype="int32"), weight=weight(vocab, hidden))


def check(op: Op, rows: RowTable, rng: np.random.Generator, run=emulate) -> None:
    vocab = op.weights()[0].shape[0]
    ids = rng.integers(0, vocab, len(rows))
    ids[:1], ids[-1:] = vocab - 1, 0
    inputs = random_inputs(op, rows, rng, ids=ids)
    assert_same_bits(run(op, inputs, rows)["y"], reference(op, inputs, rows)["y"])


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, rng: np.random.Generator) -> None:
    check(embed(64, 4096, 256), decode_rows([3] * rows), rng)


@pytest.mark.parametrize("hidden", [8, 40, 7168])
def test_any_width(hidden: int, rng: np.random.Generator) -> None:
    check(embed(9, 50, hidden), decode_rows([3] * 7), rng)


def test_prompt_rows(rng: np.random.Generator) -> None:
    check(embed(256, 50, 256), prompt_rows([200]), rng)


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    op, rows = embed(64, 50, 256), decode_rows([3] * 64)
    check_row_invariance(op, random_inputs(op, rows, rng, ids=rng.integers(0, 50, 64)), rows)


def test_every_schedule(rng: np.random.Generator) -> None:
    op, rows = embed(9, 50, 264), decode_rows([3] * 7)
    check_schedules(op, random_inputs(op, rows, rng, ids=rng.integers(0, 50, 7)), rows)


def test_a_row_without_whole_vectors_is_refused(rng: np.random.Generator) -> None:
    op, rows = embed(8, 50, 12), decode_rows([3])
    with pytest.raises(OpError, match=r"24 bytes.*multiple of 16"):
        emulate(op, random_inputs(op, rows, rng, ids=np.zeros(1, np.int32)), rows)


def catches(run) -> None:
    check(embed(9, 50, 4104), decode_rows([3] * 7), np.random.default_rng(1), run)
