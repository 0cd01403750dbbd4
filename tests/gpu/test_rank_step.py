"""One rank of the published model with random weights: a row's logits have the same bits in every company, every time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ddtree.graph.model import load
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.rank import Rank
from ddtree.runtime.cuda.replay import Replay
from tests.ops.harness import assert_same_bits

K26 = Path(__file__).parents[2] / "models" / "kimi_k26.yaml"
ROWS, MOST = (1, 2, 7, 8, 9, 16, 33), 64
CONTEXT = 4000  # neither a page nor a segment ends here


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    device = Device()
    yield Rank(load(K26, [], ranks=8), device, 0, (*ROWS, MOST), CONTEXT)
    device.close()


def logits(rank: Rank, rows: int) -> np.ndarray:
    step = rank.step("verify", rows)
    step.launch()
    return step.read(step.graph.outputs["logits"], rank.table("verify", rows))


def test_a_row_does_not_depend_on_its_company(rank: Rank) -> None:
    whole = logits(rank, MOST)
    assert np.isfinite(whole).all() and whole.std() > 0.1
    assert len(np.unique(whole, axis=0)) == MOST
    for rows in ROWS:
        assert_same_bits(logits(rank, rows), whole[:rows], f"logits of {rows} rows")


@pytest.mark.parametrize("rows", [1, 8, MOST])
def test_repetitions_are_equal(rank: Rank, rows: int) -> None:
    step, first = rank.step("verify", rows), logits(rank, rows)
    replay = Replay(rank.device, step.launch)
    for turn in range(20):
        replay.launch()
        again = step.read(step.graph.outputs["logits"], rank.table("verify", rows))
        assert_same_bits(again, first, f"replay {turn} of {rows} rows")
