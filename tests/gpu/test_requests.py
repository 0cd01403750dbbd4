"""Requests one after the other on the GPU: right text, right cache, pages back in the pool."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ddtree.graph.model import load
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.load import CudaCache, cuda_decoder
from ddtree.runtime.decoder import Sampling
from ddtree.runtime.engine import Engine, Request
from ddtree.runtime.kv import PAGE
from ddtree.runtime.load import folders
from ddtree.runtime.text import Tokenizer

ROOT = Path(__file__).parents[2]
GOLDENS = json.loads((ROOT / "tests" / "data" / "kimi_tiny_greedy.json").read_text())


def engine(device: Device, *settings: str, draft: bool = True) -> Engine:
    model = load(ROOT / "models" / "kimi_tiny.yaml", settings, draft=draft)
    where = folders(model, None, None)
    return Engine(model, cuda_decoder(model, where, device), Tokenizer(model.target.spec.text, where.target))


def text_of(e: Engine, prompt: list[int], tokens: int, *stops: str) -> tuple[str, list[int], str]:
    *_, (_, result) = e.generate(Request(tuple(prompt), tokens, stop_strings=stops))
    assert sorted(e.decoder.pool.free) == list(range(e.decoder.pool.total))
    return result.text, result.output_ids, result.finish_reason


def committed_rows(e: Engine, slot: int) -> list[bytes]:
    """The committed rows of every cache of a sequence, position by position."""
    d, n = e.decoder, e.decoder.slots[slot].committed
    device: Device = d.device  # type: ignore[attr-defined]
    found = []
    for cache in d.caches:
        assert isinstance(cache, CudaCache)
        unit = cache.unit_bytes // (cache.ring or PAGE)
        for p in range(max(0, n - cache.ring) if cache.ring else 0, n):
            page = slot if cache.ring else int(d.pool.table[slot, p // PAGE])
            at = p % cache.ring if cache.ring else p % PAGE
            found.append(device.read(cache.rows + page * cache.unit_bytes + at * unit, (unit,), np.uint8).tobytes())
    return found


@pytest.fixture(scope="module")
def shared(device: Device) -> Engine:
    return engine(device)


def test_a_request_after_a_longer_one(shared: Engine, device: Device) -> None:
    text_of(shared, GOLDENS[1]["prompt_ids"] * 8, 300)
    assert text_of(shared, GOLDENS[5]["prompt_ids"], 96)[1] == GOLDENS[5]["greedy_ids"]


def test_stop_strings_at_every_offset(shared: Engine) -> None:
    whole, ids, _ = text_of(shared, GOLDENS[5]["prompt_ids"], 64)
    for at in range(0, len(whole) - 6, 3):
        stop = whole[at : at + 6]
        text, kept, why = text_of(shared, GOLDENS[5]["prompt_ids"], 64, stop)
        assert text == whole[: whole.index(stop)] and why == "stop" and kept == ids[: len(kept)]


def test_stop_ids_at_every_offset(device: Device) -> None:
    golden = GOLDENS[5]
    for at in range(1, 24):
        stop = golden["greedy_ids"][at]
        e = engine(device, f"decode.stop.ids=[{stop}]")
        first = golden["greedy_ids"].index(stop)
        _, ids, why = text_of(e, golden["prompt_ids"], 96)
        assert ids == golden["greedy_ids"][: first + 1] and why == "stop"


def test_context_filled_to_the_last_position(device: Device) -> None:
    prompt = (GOLDENS[1]["prompt_ids"] * 16)[:200]
    wide, _, _ = text_of(engine(device), prompt, 56)
    text, ids, why = text_of(engine(device, "context=256"), prompt, 56)
    assert (text, len(ids), why) == (wide, 56, "length")


def test_cancel_in_the_middle(shared: Engine) -> None:
    pieces = shared.generate(Request(tuple(GOLDENS[0]["prompt_ids"]), 96))
    for _ in range(4):
        next(pieces)
    pieces.close()
    assert sorted(shared.decoder.pool.free) == list(range(shared.decoder.pool.total))
    assert text_of(shared, GOLDENS[5]["prompt_ids"], 96)[1] == GOLDENS[5]["greedy_ids"]


def test_the_cache_holds_what_a_fresh_run_holds(shared: Engine, device: Device) -> None:
    """After rounds with a tree: the rows of a plain run over the same tokens, bit for bit."""
    prompt, d = GOLDENS[0]["prompt_ids"], shared.decoder
    slot, _ = d.start(prompt, Sampling(), 96)
    while d.slots[slot].committed < len(prompt) + 70:
        d.round()
    fresh = engine(device, draft=False)
    other, _ = fresh.decoder.start(prompt, Sampling(), 96)
    while fresh.decoder.slots[other].committed < d.slots[slot].committed:
        fresh.decoder.round()
    latents = len(committed_rows(fresh, other))
    mine = [c for c in d.caches if isinstance(c, CudaCache)]
    target_caches = [c for c in mine if c.scratch_bytes == fresh.decoder.caches[0].scratch_bytes]  # type: ignore[attr-defined]
    keep, d.caches = d.caches, target_caches[: len(fresh.decoder.caches)]
    try:
        assert len(committed_rows(shared, slot)) == latents
        assert committed_rows(shared, slot) == committed_rows(fresh, other)
    finally:
        d.caches = keep
        d.end(slot)


@pytest.mark.slow
def test_fifty_thousand_rounds(shared: Engine) -> None:
    """No growth, no fault: device memory and the pool are what they were."""
    from cuda.bindings import driver as cu

    rounds, free = 0, None
    while rounds < 50_000:
        slot, _ = shared.decoder.start(GOLDENS[rounds % 8]["prompt_ids"], Sampling(1.0, seed=rounds), 3900)
        for _ in range(500):
            shared.decoder.round()
            rounds += 1
            if shared.decoder.slots[slot].remaining < 16:
                break
        shared.decoder.end(slot)
        _, now, _ = cu.cuMemGetInfo()
        free = free or now
        assert now == free
    assert sorted(shared.decoder.pool.free) == list(range(shared.decoder.pool.total))
