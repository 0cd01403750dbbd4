"""What the decoder refuses, and that a refusal leaves it as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddtree.errors import DeviceError, UsageError
from ddtree.graph.model import load
from ddtree.runtime.decoder import Decoder, Sampling
from ddtree.runtime.load import cpu_decoder, folders
from tests.runtime.decoders import GOLDENS, ROOT, decode, decoder


@pytest.mark.parametrize(
    ("prompt", "tokens", "message"),
    [
        ([], 4, "the prompt is empty; give at least one token"),
        ([1], 0, "the number of tokens to generate must be at least 1, found 0"),
        ([1], -3, "the number of tokens to generate must be at least 1, found -3"),
        ([1, 4096], 4, "token id 4096 is outside 0..4095"),
        ([-1], 4, "token id -1 is outside 0..4095"),
        ([1] * 100, 29, "a prompt of 100 tokens and 29 new ones exceed the context of 128; shorten the prompt or ask for at most 28"),
        ([1] * 200, 1, "a prompt of 200 tokens and 1 new ones exceed the context of 128; shorten the prompt or ask for at most 0"),
    ],
)  # fmt: skip
def test_requests_that_cannot_be_served(prompt: list[int], tokens: int, message: str) -> None:
    d = decoder("context=128")
    with pytest.raises(UsageError) as caught:
        d.start(prompt, Sampling(), tokens)
    assert str(caught.value) == message
    assert not d.slots and len(d.pool.free) == d.pool.total


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "the temperature must be 0 or positive, found -0.1"),
        ({"temperature": float("nan")}, "the temperature must be 0 or positive, found nan"),
        ({"temperature": float("inf")}, "the temperature must be 0 or positive, found inf"),
        ({"top_k": -1}, "top-k must be 0 (all tokens) or positive, found -1"),
        ({"top_p": 0.0}, "top-p must be above 0 and at most 1, found 0.0"),
        ({"top_p": 1.01}, "top-p must be above 0 and at most 1, found 1.01"),
        ({"top_p": float("nan")}, "top-p must be above 0 and at most 1, found nan"),
        ({"seed": -1}, "the seed must be 0..2**63-1, found -1"),
        ({"seed": 2**63}, "the seed must be 0..2**63-1, found 9223372036854775808"),
    ],
)
def test_sampling_that_means_nothing(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sampling(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "options", [{"top_k": 2**31}, {"top_k": 2**70}, {"temperature": 1e-60}, {"temperature": 1e60}, {"top_p": 1e-60}]
)
def test_extreme_sampling_decodes_or_is_refused(options: dict[str, Any]) -> None:
    d = decoder("context=128")
    try:
        made, _ = decode(d, GOLDENS[0]["prompt_ids"], 2, Sampling(**{"temperature": 1.0, **options}))
        assert len(made) == 2
    except UsageError as error:
        assert "found" in str(error)
    assert not d.slots and len(d.pool.free) == d.pool.total


def fresh() -> Decoder:
    """A decoder of one's own, to break."""
    model = load(ROOT / "models" / "kimi_tiny.yaml", ["context=128"])
    return cpu_decoder(model, folders(model, None, None))


def spoil(d: Decoder, name: str, value: float) -> None:
    """One element of a weight becomes `value`."""
    for step in d.steps.values():
        for rank, graph in zip(step.ranks, step.graphs, strict=True):  # type: ignore[attr-defined]
            if name in graph.weights():
                weight = rank.weight(graph.weights()[name]).copy()
                weight.reshape(-1)[0] = value
                rank.ready[name] = weight


def test_nan_after_the_prompt_is_an_error_and_no_text() -> None:
    d = fresh()
    spoil(d, "lm_head.weight", np.nan)
    with pytest.raises(DeviceError, match="logits are NaN after the prompt") as caught:
        d.start(GOLDENS[0]["prompt_ids"], Sampling(), 8)
    assert caught.value.exit_code == 5
    assert not d.slots and len(d.pool.free) == d.pool.total


@pytest.mark.parametrize("weight", ["lm_head.weight", "model.layers.3.self_attn.o_proj.weight", "model.norm.weight"])
def test_nan_in_a_round_is_an_error_and_no_text(weight: str) -> None:
    d = fresh()
    slot, _ = d.start(GOLDENS[0]["prompt_ids"], Sampling(temperature=1.0, seed=1), 8)
    spoil(d, weight, np.nan)
    with pytest.raises(DeviceError, match="logits are NaN"):
        d.round()
    d.end(slot)
    assert len(d.pool.free) == d.pool.total


def test_a_drafter_that_gives_nan_costs_speed_only() -> None:
    d = fresh()
    spoil(d, "draft.norm.weight", np.nan)
    with np.errstate(invalid="ignore"):
        made, _ = decode(d, GOLDENS[0]["prompt_ids"], 12)
    assert made == GOLDENS[0]["greedy_ids"][:12]
