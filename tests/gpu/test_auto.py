"""`budget: auto` on the GPU: rounds that choose their size change no token, with drafts and without, alone and in company."""

from __future__ import annotations

import random
from functools import cache

import pytest

from ddtree.graph.budget import Choice, Costs
from ddtree.graph.model import load
from ddtree.runtime.cuda.decoder import CudaDecoder
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.load import cuda_decoder
from ddtree.runtime.decoder import Sampling
from ddtree.runtime.load import folders
from tests.gpu.test_generation import GOLDENS, GREEDY, SAMPLED, YAML, run
from tests.runtime.replay import CURVES
from tests.steps.choosing import RARE

PROMPTS: list[list[int]] = [g["prompt_ids"] for g in GOLDENS]
WILD = Sampling(temperature=3.0, seed=1)  # text that no drafter foresees
TOKENS = 192
COSTS = {"as measured": None, "as H200": CURVES["H200"], "few pay": RARE}


@cache
def decoder(device: Device, loop_on: str, sequences: int) -> CudaDecoder:
    model = load(YAML, ("tree.budget=auto", f"decode.loop_on={loop_on}", f"decode.sequences={sequences}"))
    made = cuda_decoder(model, folders(model, None, None), device)
    assert isinstance(made, CudaDecoder)
    return made


@pytest.fixture(scope="module")
def texts(device: Device) -> dict[tuple[Sampling, int], list[int]]:
    """Text by sampling and prompt, decoded without a drafter."""
    model = load(YAML, ("decode.sequences=8",), draft=False)
    plain = cuda_decoder(model, folders(model, None, None), device)
    made = {s: run(plain, PROMPTS, TOKENS, s)[0] for s in (GREEDY, SAMPLED, WILD)}
    return {(s, i): text for s, all_ in made.items() for i, text in enumerate(all_)}


def measured(d: CudaDecoder) -> Costs:
    assert d.sizes
    return d.sizes.costs


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("sequences", [1, 3, 8])
@pytest.mark.parametrize("loop_on", ["device", "host"])
def test_auto_equals_plain_decoding(
    loop_on: str, sequences: int, costs: str, device: Device, texts: dict[tuple[Sampling, int], list[int]]
) -> None:
    d = decoder(device, loop_on, sequences)
    own = measured(d)
    d.use(COSTS[costs] or own)
    for sampling in (GREEDY, SAMPLED, WILD):
        group = range(8)[:sequences] if sequences > 1 else range(2)
        for mine in [group] if sequences > 1 else [[i] for i in group]:
            got, _ = run(d, [PROMPTS[i] for i in mine], TOKENS, sampling)
            assert got == [texts[sampling, i] for i in mine], f"{sampling} {mine}"
    assert sorted(d.pool.free) == list(range(d.pool.total))
    d.use(own)


def test_costs_are_measured_at_load(device: Device) -> None:
    costs = measured(decoder(device, "device", 1))
    assert 0.01 < costs.at(1) < costs.at(64) < 50 and 0.001 < costs.draft < costs.at(64)


def test_rounds_without_a_draft_and_probes(device: Device) -> None:
    """What a text that no drafter foresees costs in rounds, and how the record says so."""
    d = decoder(device, "device", 1)
    own = measured(d)
    d.use(CURVES["H200"])
    slot, first = d.start(PROMPTS[0], WILD, 512)
    made, choices = [first], list[Choice]()
    while len(made) < 512:
        done = d.round()[slot]
        assert done.choice and len(done.tree) == done.choice.rows
        made += done.emitted
        choices.append(done.choice)
    d.end(slot)
    d.use(own)
    drafts = [c for c in choices if c.draft]
    assert 1 < len(drafts) < len(choices) / 5 and any(c.probe for c in drafts)
    assert sum(c.ms for c in choices) < 1.05 * CURVES["H200"].at(1) * len(made)


def test_joining_and_leaving(device: Device, texts: dict[tuple[Sampling, int], list[int]]) -> None:
    d, rng = decoder(device, "device", 3), random.Random(5)
    own = measured(d)
    d.use(RARE)
    live: dict[int, tuple[tuple[Sampling, int], list[int]]] = {}
    waiting = [(s, i) for s in (GREEDY, WILD) for i in range(8)]
    while waiting or live:
        if waiting and len(live) < 3 and rng.random() < 0.4:
            key = waiting.pop()
            slot, first = d.start(PROMPTS[key[1]], key[0], TOKENS)
            live[slot] = key, [first]
        for slot, done in d.round().items():
            key, text = live[slot]
            text += done.emitted
            assert text[:TOKENS] == texts[key][: len(text)]
            if len(text) >= TOKENS or rng.random() < 0.02:
                d.end(slot)
                del live[slot]
    d.use(own)
