"""Stop: equal to a reading of the round's tokens one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import Op
from ddtree.graph.ops import Stop
from ddtree.graph.rows import RowTable
from tests.ops.harness import assert_same_bits, check_schedules, emulate, make, reference, tensor, tree_rows

GOES_ON, STOPPED, LIMIT, NO_TOKEN = range(4)
IDS = (3, 7)


def end(sequences: int, ids: tuple[int, ...] = IDS, width: int = 8) -> Op:
    fields = {name: tensor(sequences, dtype="int32", domain="sequences") for name in ("length", "remaining")}
    return make(Stop, emitted=tensor(sequences, width, dtype="int32", domain="sequences"), ids=ids, **fields)


def rounds(rng: np.random.Generator, sequences: int, width: int = 8) -> dict[str, np.ndarray]:
    """Random rounds over ten tokens, a tenth of them without a last token; some sequences absent, some at their limit."""
    length = rng.integers(0, width + 1, sequences).astype(np.int32)
    emitted = rng.integers(0, 10, (sequences, width)).astype(np.int32)
    emitted[np.arange(width) >= length[:, None]] = -1
    broken = np.flatnonzero((rng.random(sequences) < 0.1) & (length > 0))
    emitted[broken, length[broken] - 1] = -1
    return {"emitted": emitted, "length": length, "remaining": rng.integers(1, 12, sequences).astype(np.int32)}


def no_rows(sequences: int) -> RowTable:
    return tree_rows([0] * sequences, [0] * sequences)


def oracle(tokens: list[int], remaining: int, ids: tuple[int, ...]) -> tuple[int, int]:
    """Kept tokens and outcome of one sequence."""
    kept = 0
    for token in tokens:
        if kept == remaining:
            break
        if token == -1:
            return kept, NO_TOKEN
        kept += 1
        if token in ids:
            return kept, STOPPED
    return kept, LIMIT if tokens and kept == remaining else GOES_ON


def check(inputs: dict[str, np.ndarray], ids: tuple[int, ...] = IDS, run: Any = emulate) -> set[int]:
    sequences = len(inputs["length"])
    got = run(end(sequences, ids, inputs["emitted"].shape[1]), inputs, no_rows(sequences))
    rows = zip(inputs["emitted"].tolist(), inputs["length"], inputs["remaining"], strict=True)
    want = np.array([oracle(row[:n], left, ids) for row, n, left in rows], np.int32).reshape(sequences, 2)
    assert_same_bits(got["kept"], want[:, 0].copy(), "kept")
    assert_same_bits(got["done"], want[:, 1].copy(), "done")
    return set(want[:, 1].tolist())


@pytest.mark.parametrize("run", [emulate, reference])
def test_equals_the_oracle(run: Any, rng: np.random.Generator) -> None:
    assert check(rounds(rng, 500), run=run) == {GOES_ON, STOPPED, LIMIT, NO_TOKEN}


@pytest.mark.parametrize("ids", [(), (5,), (1, 2, 3, 4), (163585, 163586)])
def test_any_stop_ids(ids: tuple[int, ...], rng: np.random.Generator) -> None:
    inputs = rounds(rng, 40)
    inputs["emitted"][inputs["emitted"] == 0] = 163586
    assert (STOPPED in check(inputs, ids)) == bool(ids)


@pytest.mark.parametrize("sequences", [1, 2, 31, 33])
@pytest.mark.parametrize("width", [1, 16])
def test_any_size(sequences: int, width: int, rng: np.random.Generator) -> None:
    check(rounds(rng, sequences, width))


def test_sequence_slots_past_the_live_ones_are_left_alone(rng: np.random.Generator) -> None:
    inputs = rounds(rng, 3)
    got, want = (run(end(8), inputs, no_rows(3)) for run in (emulate, reference))
    for name in ("kept", "done"):
        assert_same_bits(got[name], want[name], name)


def test_every_schedule(rng: np.random.Generator) -> None:
    check_schedules(end(40), rounds(rng, 40), no_rows(40))


def catches(run: Any) -> None:
    check(rounds(np.random.default_rng(1), 100), run=run)
