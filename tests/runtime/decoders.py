"""Decoders of the shipped tiny model, and the loops that tests run on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ddtree.graph.model import load
from ddtree.graph.numerics import Precision
from ddtree.runtime.decoder import Decoder, Round, Sampling
from ddtree.runtime.load import cpu_decoder, folders

ROOT = Path(__file__).parents[2]
GOLDENS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "data" / "kimi_tiny_greedy.json").read_text(encoding="utf-8")
)
PLAIN = "decode.loop=[verify, accept, commit]"  # no drafter, no tree


@cache
def decoder(*settings: str, precision: Precision = Precision.FP32) -> Decoder:
    """The tiny model with settings. Shared by tests: end what you start."""
    model = load(ROOT / "models" / "kimi_tiny.yaml", settings)
    return cpu_decoder(model, folders(model, None, None), precision=precision)


def rounds(
    d: Decoder, prompt: Sequence[int], tokens: int, sampling: Sampling | None = None
) -> tuple[list[int], list[Round]]:
    """At least `tokens` tokens after a prompt, alone in the decoder, and the rounds that made all but the first."""
    slot, token = d.start(prompt, sampling or Sampling(), tokens)
    made, done = [token], list[Round]()
    try:
        while len(made) < tokens:
            done.append(d.round()[slot])
            made += done[-1].emitted
    finally:
        d.end(slot)
    return made, done


def decode(
    d: Decoder, prompt: Sequence[int], tokens: int, sampling: Sampling | None = None
) -> tuple[list[int], list[int]]:
    """`tokens` tokens after a prompt and the accepted length of each round."""
    made, done = rounds(d, prompt, tokens, sampling)
    return made[:tokens], [len(r.emitted) for r in done]


def prompt(length: int, seed: int = 0) -> list[int]:
    """A prompt of text that the model may have seen: the goldens' prompts and answers in some order, cut."""
    order = np.random.default_rng(seed).permutation(len(GOLDENS))
    ids = [i for g in order for i in (*GOLDENS[g]["prompt_ids"][1:], *GOLDENS[g]["greedy_ids"])]
    return [GOLDENS[0]["prompt_ids"][0], *np.resize(ids, length - 1).tolist()] if length else []


class Watched:
    """A step executor that records its runs' inputs and outputs."""

    def __init__(self, step: Any) -> None:
        self.step, self.runs = step, list[tuple[dict[str, np.ndarray], dict[str, np.ndarray], Any]]()

    def run(self, inputs: Any, rows: Any) -> dict[str, np.ndarray]:
        """Pass on."""
        out: dict[str, np.ndarray] = self.step.run(inputs, rows)
        self.runs.append(({k: np.array(v) for k, v in inputs.items()}, {k: np.array(v) for k, v in out.items()}, rows))
        return out


def watch(d: Decoder, step: str) -> Watched:
    """Record a step of a decoder; put `.step` back afterwards."""
    watched = Watched(d.steps[step])  # type: ignore[index]
    d.steps = {**d.steps, step: watched}  # type: ignore[dict-item]
    return watched
