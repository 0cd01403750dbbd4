"""Random drafters against an independent PyTorch one that recomputes everything each round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ddtree.graph.model import load
from tests.fixtures.pair import YARN, DrafterShape, TargetShape, write_pair
from tests.fixtures.steps import Steps, chain, random_tree
from tests.oracle.drafter import Drafter
from tests.oracle.reference import TOLERANCE, plain_tensors

pytestmark = pytest.mark.oracle
TARGET = TargetShape(dense_width=64, experts=4, top_k=1)
SLIDING, FULL = (True,), (False,)
K26 = {**YARN, "layout": "half", "factor": 64, "original": 4096, "softmax_gain": False}


def layers(*pattern: tuple[int, bool]) -> DrafterShape:
    return DrafterShape(layers=pattern)


SHAPES = {
    "published pattern": layers((16, True), (16, True), (0, False)),
    "full": layers((0, False)),
    "full causal": layers((0, True), (0, True)),
    "sliding both ways": layers((16, False), (16, False)),
    "window inside the block": layers((3, True), (3, False)),
    "window of one": layers((1, True), (0, False)),
    "window of a page": layers((64, True), (64, False)),
    "window past a page": layers((65, True), (129, False)),
    "one key-value head": DrafterShape(heads=6, kv_heads=1, layers=((20, True), (0, False))),
    "all key-value heads": DrafterShape(heads=5, kv_heads=5, layers=((20, True), (0, False))),
    "three queries a head": DrafterShape(heads=6, kv_heads=2, head=24, layers=((20, True), (0, False))),
    "one tap": DrafterShape(taps=(1,)),
    "taps out of order": DrafterShape(taps=(1, 0)),
    "short block": DrafterShape(block=3),
    "long block": DrafterShape(block=16, layers=((10, True), (10, False), (0, False))),
    "yarn, ratio of gains": DrafterShape(rotation={**K26, "original": 32}),
    "yarn, gain alone": DrafterShape(rotation={**K26, "mscale_all_dim": 0}),
    "yarn, explicit amplitude": DrafterShape(rotation={**K26, "amplitude": 1.41589}),
    "large eps, other theta": DrafterShape(eps=0.1, rotation={"kind": "plain", "theta": 100, "layout": "half"}),
}


class Duel:
    """The engine's drafter and the independent one on the same target features."""

    def __init__(self, folder: Path, shape: DrafterShape, seed: int = 0) -> None:
        path = write_pair(folder, TARGET, shape, seed=seed, prefill_rows=50)
        plain = plain_tensors(folder / "target")
        self.steps = Steps(load(path))
        self.reference = Drafter(folder / "drafter", shape, plain["model.embed_tokens.weight"], plain["lm_head.weight"])
        self.features = torch.zeros(0, len(shape.taps) * TARGET.hidden)
        self.rng = np.random.default_rng(seed)

    def prefill(self, length: int) -> None:
        ids = self.rng.integers(TARGET.vocab, size=length).tolist()
        self._append(self.steps.prefill(ids)["features"])

    def round(self) -> None:
        """Draft and compare, then commit a branch of a random tree."""
        tokens, parents = random_tree(self.rng, 10, TARGET.vocab, self.steps.limits.depths)
        self.compare(tokens[0])
        self._append(self.steps.commit(chain(int(self.rng.integers(10)), parents), self.steps.verify(tokens, parents)))

    def compare(self, anchor: int) -> None:
        ours, theirs = self.steps.draft(anchor), self.reference.logits(self.features, anchor)
        assert np.abs(ours["logits"] - theirs.numpy()).max() < TOLERANCE
        best = theirs.log_softmax(-1).topk(ours["candidate"].shape[1])
        assert np.abs(ours["log_prob"] - best.values.numpy()).max() < TOLERANCE
        assert (ours["candidate"] == best.indices.numpy()).all()

    def _append(self, rows: np.ndarray) -> None:
        self.features = torch.cat([self.features, torch.from_numpy(rows)])


@pytest.mark.parametrize("name", SHAPES)
def test_rounds_equal_full_recomputation(name: str, tmp_path: Path) -> None:
    """Context rows added round by round, in rings that wrap, give what one pass over all features gives."""
    duel = Duel(tmp_path, SHAPES[name], seed=len(name))
    for length in (11, 120):
        duel.prefill(length)
        for _ in range(4):
            duel.round()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [4, 16, 64])
def test_window_edges(window: int, causal: bool, tmp_path: Path) -> None:
    """Every context length around the window, so that its edge passes each row of the block."""
    duel = Duel(tmp_path, layers((window, causal)))
    duel.prefill(max(1, window - 9))
    for _ in range(12):
        duel.compare(anchor=7)
        duel.prefill(1)
    duel.prefill(2 * 64)
    duel.compare(anchor=7)


@pytest.mark.parametrize("wrong", [(15, True), (17, True), (16, False), (0, True)], ids=str)
def test_comparison_would_see_another_mask(wrong: tuple[int, bool], tmp_path: Path) -> None:
    """One position more or less in a window, or another causality, moves the logits far beyond the tolerance."""
    duel = Duel(tmp_path, layers((16, True)))
    duel.prefill(40)
    right, other = duel.reference.logits(duel.features, 7), duel.reference.logits(duel.features, 7, [wrong])
    assert (right - other).abs().max() > 100 * TOLERANCE
