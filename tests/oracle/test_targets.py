"""Random targets against transformers' DeepseekV3ForCausalLM: prompts, trees, taps and tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.graph.model import load
from tests.fixtures.pair import YARN, DrafterShape, TargetShape, write_pair
from tests.fixtures.steps import Steps, chain, random_tree
from tests.oracle.reference import TOLERANCE, deepseek, features, forward, node_logits, relative_error

pytestmark = pytest.mark.oracle
CONFIGS = range(12)


def random_rotation(rng: np.random.Generator) -> dict[str, Any]:
    """Plain RoPE one time in four, else YaRN whose ramp lies anywhere, with both amplitude and softmax gains."""
    layout = ["interleaved", "half"][int(rng.random() < 0.3)]
    theta = float(rng.choice([1e4, 5e4, 1e6]))
    if rng.random() < 0.25:
        return {"kind": "plain", "theta": theta, "layout": layout}
    return {
        **YARN, "theta": theta, "layout": layout, "factor": float(rng.choice([1.5, 4, 64])),
        "original": int(rng.choice([16, 64, 1024, 4096])), "beta_fast": float(rng.choice([1.5, 32])),
        "mscale": float(rng.choice([0.7, 1])), "mscale_all_dim": float(rng.choice([0.5, 1])),
    }  # fmt: skip


def random_shape(rng: np.random.Generator) -> TargetShape:
    """Any sizes that the architecture allows, most of them no multiple of anything."""
    layers, experts = int(rng.integers(3, 6)), int(rng.integers(5, 24))
    return TargetShape(
        vocab=int(rng.integers(50, 300)), hidden=32 * int(rng.integers(2, 5)), heads=int(rng.integers(1, 9)),
        q_lora=int(rng.integers(20, 70)), kv_lora=int(rng.integers(20, 70)), nope=int(rng.integers(8, 40)),
        rope=2 * int(rng.integers(2, 13)), value=int(rng.integers(8, 40)), dense_width=int(rng.integers(40, 200)),
        experts=experts, top_k=int(rng.integers(1, min(9, experts))), expert_width=32 * int(rng.integers(1, 5)),
        shared_experts=int(rng.integers(1, 3)), layers=layers, dense_layers=int(rng.integers(0, 3)),
        eps=float(rng.choice([1e-6, 1e-5, 1e-3])), inner_eps=float(rng.choice([1e-6, 1e-5, 1e-2])),
        route_scale=float(rng.choice([1.0, 2.827])), rotation=random_rotation(rng),
    )  # fmt: skip


@pytest.mark.parametrize("seed", CONFIGS)
def test_random_target(seed: int, tmp_path: Path) -> None:
    """A prompt in chunks, a tree, a committed branch of it, and a tree on top of that."""
    rng = np.random.default_rng(seed)
    shape = random_shape(rng)
    taps = tuple(int(i) for i in rng.permutation(shape.layers - 1)[: int(rng.integers(1, shape.layers))])
    path = write_pair(tmp_path, shape, DrafterShape(taps=taps), seed=seed, prefill_rows=int(rng.integers(7, 90)))
    reference = deepseek(tmp_path / "target", shape, tmp_path)
    steps, ids = Steps(load(path)), rng.integers(shape.vocab, size=int(rng.integers(30, 100))).tolist()

    prompt = steps.prefill(ids)
    assert np.abs(prompt["logits"] - forward(reference, ids)[0]).max() < TOLERANCE
    assert relative_error(prompt["features"], features(reference, ids, taps)) < TOLERANCE
    for nodes in (14, 9):
        tokens, parents = random_tree(rng, nodes, shape.vocab, 7)
        tree = steps.verify(tokens, parents)
        assert np.abs(tree["logits"] - node_logits(reference, ids, tokens, parents)).max() < TOLERANCE
        branch = chain(int(rng.integers(nodes)), parents)
        committed = steps.commit(branch, tree)
        ids += [tokens[i] for i in branch]
        assert relative_error(committed, features(reference, ids, taps)[-len(branch) :]) < TOLERANCE


@pytest.mark.parametrize("seed", range(3))
def test_ranks_equal_one(seed: int, tmp_path: Path) -> None:
    """Slices of packed experts, heads, vocabulary and drafter add up: every step equals that of one rank and transformers."""
    rng = np.random.default_rng(100 + seed)
    shape = random_shape(rng)
    shape = replace(
        shape, vocab=4 * (shape.vocab // 4), heads=4 * int(rng.integers(1, 3)), dense_width=4 * (shape.dense_width // 4),
        expert_width=128,
    )  # fmt: skip
    path = write_pair(tmp_path, shape, DrafterShape(heads=8, kv_heads=4), seed=seed)
    reference = deepseek(tmp_path / "target", shape, tmp_path)
    ids = rng.integers(shape.vocab, size=50).tolist()
    tokens, parents = random_tree(rng, 10, shape.vocab, 7)
    expected = [forward(reference, ids)[0], node_logits(reference, ids, tokens, parents)]

    def run(ranks: int) -> list[np.ndarray]:
        steps = Steps(load(path, ranks=ranks))
        prompt, tree = steps.prefill(ids), steps.verify(tokens, parents)
        steps.commit(chain(9, parents), tree)
        return [prompt["logits"], tree["logits"], prompt["features"], tree["features"], steps.draft(3)["logits"]]

    whole = run(1)
    for ranks in (2, 4):
        parts = run(ranks)
        for part, one in zip(parts, whole, strict=True):
            assert relative_error(part, one) < TOLERANCE
        for part, theirs in zip(parts, expected, strict=False):
            assert np.abs(part - theirs).max() < TOLERANCE
