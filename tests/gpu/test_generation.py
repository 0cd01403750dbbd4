"""kimi-tiny on the GPU: goldens, bit identity with and without the tree, alone and in company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.graph.model import load
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.load import cuda_decoder
from ddtree.runtime.decoder import Decoder, Sampling
from ddtree.runtime.load import folders

ROOT = Path(__file__).parents[2]
YAML = ROOT / "models" / "kimi_tiny.yaml"
GOLDENS = json.loads((ROOT / "tests" / "data" / "kimi_tiny_greedy.json").read_text())
GREEDY = Sampling()
SAMPLED = Sampling(0.8, 50, 0.95, 7)


def decoder(device: Device, *settings: str, captured: bool = True, draft: bool = True) -> Decoder:
    model = load(YAML, settings, draft=draft)
    return cuda_decoder(model, folders(model, None, None), device, captured=captured)


def run(
    d: Decoder, prompts: list[list[int]], tokens: int, sampling: Sampling = GREEDY
) -> tuple[list[list[int]], list[int]]:
    """Decode all prompts together; their tokens, and the accepted lengths of all rounds."""
    slots, texts, lengths = {}, [], []
    for p in prompts:
        slot, first = d.start(p, sampling, tokens)
        slots[slot] = [first]
        texts.append(slots[slot])
    while slots:
        for slot, done in d.round().items():
            slots[slot] += done.emitted
            lengths.append(len(done.emitted))
            if len(slots[slot]) >= tokens:
                del slots[slot][tokens:]
                del slots[slot]
                d.end(slot)
    return texts, lengths


@pytest.fixture(scope="module")
def plain(device: Device) -> Any:
    return decoder(device, draft=False)


def test_prompt_5_equals_its_golden(device: Device, plain: Decoder) -> None:
    golden = GOLDENS[5]
    for d in (plain, decoder(device), decoder(device, captured=False)):
        texts, _ = run(d, [golden["prompt_ids"]], 96)
        assert texts[0] == golden["greedy_ids"]


@pytest.mark.parametrize("kind", ["chain7", "tree7", "tree15", "tree31"])
def test_accepted_lengths_are_near_the_goldens(kind: str, device: Device) -> None:
    budget = int(kind.removeprefix("chain").removeprefix("tree"))
    width = "1" if kind.startswith("chain") else "auto"
    d = decoder(device, f"tree.budget={budget}", f"tree.width={width}")
    lengths = [n for g in GOLDENS for n in run(d, [g["prompt_ids"]], 96)[1]]
    want = [n for g in GOLDENS for n in g["accept"][kind]["lengths"]]
    assert np.mean(lengths) == pytest.approx(np.mean(want), rel=0.05)


def test_teacher_forced_argmax(device: Device) -> None:
    d = decoder(device, draft=False, captured=False)
    positions = misses = 0
    for golden in GOLDENS:
        forced = [*golden["prompt_ids"], *golden["greedy_ids"]]
        for i, gap in enumerate(golden["gaps"]):
            slot, token = d.start(forced[: len(golden["prompt_ids"]) + i], Sampling(), 1)
            d.end(slot)
            positions += 1
            if token != golden["greedy_ids"][i]:
                misses += 1
                assert gap < 0.5, f"position {i}: gap {gap}"
    assert misses <= 0.01 * positions, f"{misses} of {positions}"


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "settings",
    [
        *[(f"tree.budget={b}",) for b in (4, 7, 15, 31, 63)],
        ("tree.budget=7", "tree.width=1"),
        ("tree.budget=15", "tree.width=4"),
        ("tree.budget=15", "block_size=2"),
        ("tree.budget=15", "block_size=4"),
    ],
    ids=" ".join,
)
def test_tree_equals_plain_decoding(
    settings: tuple[str, ...], sampling: Sampling, device: Device, plain: Decoder
) -> None:
    prompts = [g["prompt_ids"] for g in GOLDENS]
    d = decoder(device, *settings)
    for p in prompts:
        want, _ = run(plain, [p], 256, sampling)
        assert run(d, [p], 256, sampling)[0] == want


@pytest.mark.parametrize("sequences", [3, 8])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_company_changes_nothing(sequences: int, sampling: Sampling, device: Device, plain: Decoder) -> None:
    prompts = [g["prompt_ids"] for g in GOLDENS][:sequences]
    d = decoder(device, f"decode.sequences={sequences}")
    together, _ = run(d, prompts, 256, sampling)
    for p, text in zip(prompts, together, strict=True):
        assert run(plain, [p], 256, sampling)[0] == [text]
    assert sorted(d.pool.free) == list(range(d.pool.total))


def test_repetitions_are_identical(device: Device) -> None:
    d = decoder(device)
    first = run(d, [GOLDENS[0]["prompt_ids"]], 128)
    assert all(run(d, [GOLDENS[0]["prompt_ids"]], 128) == first for _ in range(20))
