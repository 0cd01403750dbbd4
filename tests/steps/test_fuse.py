"""Emulated kernels of fused graphs and of unfused ones: one text, and the same bits in every step's outputs."""

from __future__ import annotations

from ddtree.graph.model import load
from ddtree.graph.passes.fuse import FUSIONS
from ddtree.runtime.decoder import Decoder, Sampling
from tests.runtime.decoders import prompt, watch
from tests.steps.emulated import KIMI_TINY, emulated_decoder
from tests.steps.test_generation import generate


def fused(*settings: str) -> Decoder:
    return emulated_decoder(load(KIMI_TINY, ("tree.budget=7", *settings)))


def test_fused_kernels_have_the_bits_of_unfused_ones() -> None:
    texts, runs = [], []
    for d in (fused(), fused(*(f"passes.{name}=false" for name in FUSIONS))):
        steps = {step: watch(d, step) for step in d.steps}
        texts.append(generate(d, prompt(5), 8, Sampling()))
        runs.append([(step, run[1]) for step, watched in steps.items() for run in watched.runs])
    assert texts[0] == texts[1]
    for (step, outputs), (_, wanted) in zip(*runs, strict=True):
        for name, value in wanted.items():
            assert outputs[name].tobytes() == value.tobytes(), f"{step}.{name}"
