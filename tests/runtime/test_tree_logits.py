"""A node of the tree gets the logits of plain decoding of its path, to the bit: accepted or not, at any depth."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.numerics import Precision
from ddtree.runtime.decoder import Decoder, Sampling
from tests.runtime.decoders import GOLDENS, PLAIN, decoder, rounds, watch


def plain_logits(d: Decoder, prompt: list[int], path: list[int]) -> np.ndarray:
    """Logits after a prompt and then each token of `path`, decoded one by one: [len(path), vocab]."""
    slot, _ = d.start(prompt, Sampling(), 64)
    seen = watch(d, "verify")
    try:
        for token in path:
            d.slots[slot].anchor = token
            d.round()
    finally:
        d.steps = {**d.steps, "verify": seen.step}
        d.end(slot)
    return np.concatenate([out["logits"] for _, out, _ in seen.runs])


@pytest.mark.parametrize("precision", list(Precision))
def test_every_deep_node_of_a_tree(precision: Precision) -> None:
    golden = GOLDENS[5]
    d, plain = decoder(precision=precision), decoder(PLAIN, precision=precision)
    seen = watch(d, "verify")
    try:
        slot, _ = d.start(golden["prompt_ids"], Sampling(), 64)
        tree = d.round()[slot].tree
        d.end(slot)
    finally:
        d.steps = {**d.steps, "verify": seen.step}
    logits, rows = seen.runs[0][1]["logits"], seen.runs[0][2]
    leaves = [i for i in range(len(tree)) if i not in tree.parent]
    assert max(tree.depth) == 7 and len(leaves) > 3
    for leaf in leaves:
        path = rows.path(leaf)
        want = plain_logits(plain, golden["prompt_ids"], tree.token[path].tolist())
        assert want.tobytes() == logits[path].tobytes(), f"node {leaf} at depth {tree.depth[leaf]}"


@pytest.mark.parametrize("precision", list(Precision))
def test_a_whole_generation(precision: Precision) -> None:
    prompt = GOLDENS[7]["prompt_ids"]
    d, plain = decoder("tree.budget=31", precision=precision), decoder(PLAIN, precision=precision)
    seen, seen_plain = watch(d, "verify"), watch(plain, "verify")
    try:
        made, done = rounds(d, prompt, 24)
        want, _ = rounds(plain, prompt, 24)
    finally:
        d.steps, plain.steps = {**d.steps, "verify": seen.step}, {**plain.steps, "verify": seen_plain.step}
    assert made[:24] == want
    accepted = np.concatenate([out["logits"][r.path] for (_, out, _), r in zip(seen.runs, done, strict=True)])[:23]
    assert accepted.tobytes() == np.concatenate([out["logits"] for _, out, _ in seen_plain.runs]).tobytes()
    assert len(done) < 12


def test_bf16_rounds_and_fp32_does_not() -> None:
    prompt, answer = GOLDENS[0]["prompt_ids"], GOLDENS[0]["greedy_ids"][:1]
    a, b = (plain_logits(decoder(PLAIN, precision=p), prompt, answer) for p in Precision)
    assert not np.array_equal(a, b) and np.abs(a - b).max() < 0.5
