"""kimi-tiny against transformers' own class for the published layout, packed INT4 experts included."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ddtree.graph.model import load
from tests.fixtures.pair import MODELS, TARGET
from tests.fixtures.steps import Steps, random_tree
from tests.oracle.reference import TOLERANCE, features, forward, kimi, node_logits, relative_error

pytestmark = pytest.mark.oracle
GOLDENS = json.loads((MODELS.parent / "tests/data/kimi_tiny_greedy.json").read_text())
TAPS = (1, 3, 5)


@pytest.fixture(scope="module")
def reference() -> Any:
    return kimi(MODELS / "kimi_tiny")


@pytest.mark.parametrize("golden", GOLDENS, ids=range(len(GOLDENS)))
def test_logits_of_prompt_and_continuation(golden: dict[str, Any], reference: Any) -> None:
    ids = golden["prompt_ids"] + golden["greedy_ids"]
    ours = Steps(load(TARGET)).prefill(ids)
    theirs, _ = forward(reference, ids)
    assert np.abs(ours["logits"] - theirs).max() < TOLERANCE
    assert relative_error(ours["features"], features(reference, ids, TAPS)) < TOLERANCE


@pytest.mark.parametrize("golden", GOLDENS[:3], ids=range(3))
def test_logits_of_tree_rounds(golden: dict[str, Any], reference: Any) -> None:
    """Each round holds the golden trees' tokens and branches that the model would never choose; then a path is committed."""
    steps, ids = Steps(load(TARGET)), list(golden["prompt_ids"])
    steps.prefill(ids)
    text, rng = golden["greedy_ids"], np.random.default_rng(len(ids))
    for first in range(0, 40, 8):
        likely = text[first : first + 5]
        tokens, parents = random_tree(rng, 11, 4096, 7)
        tokens[0] = likely[0]
        tokens, parents = tokens + likely[1:], [*parents, 0, *range(11, 11 + len(likely) - 2)]
        out = steps.verify(tokens, parents)
        assert np.abs(out["logits"] - node_logits(reference, ids, tokens, parents)).max() < TOLERANCE
        steps.commit([0, *range(11, 11 + len(likely) - 1)], out)
        ids += likely
        steps.prefill(rest := text[first + 5 : first + 8])
        ids += rest


@pytest.mark.parametrize(("ranks", "draft"), [(2, True), (4, False)])  # the drafter has two key-value heads
def test_ranks(ranks: int, draft: bool, reference: Any) -> None:
    ids = GOLDENS[0]["prompt_ids"]
    tokens, parents = random_tree(np.random.default_rng(ranks), 12, 4096, 7) if draft else ([55], [-1])
    steps = Steps(load(TARGET, ranks=ranks, draft=draft))
    assert np.abs(steps.prefill(ids)["logits"] - forward(reference, ids)[0]).max() < TOLERANCE
    ours = steps.verify(tokens, parents)["logits"]
    assert np.abs(ours - node_logits(reference, ids, tokens, parents)).max() < TOLERANCE
