"""The loop of rounds on the GPU: the same text as rounds that the host launches, whoever joins, stops or stalls."""

from __future__ import annotations

import _thread
import random
import threading
import time

import pytest

from ddtree.errors import DeviceError, UsageError
from ddtree.graph.model import load
from ddtree.runtime.cuda.decoder import CudaDecoder
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.load import CudaCache, cuda_decoder
from ddtree.runtime.decoder import Sampling
from ddtree.runtime.engine import Engine, Request
from ddtree.runtime.kv import PagePool
from ddtree.runtime.load import folders
from ddtree.runtime.text import Tokenizer
from tests.gpu.test_generation import GOLDENS, GREEDY, SAMPLED, YAML, run

PROMPTS: list[list[int]] = [g["prompt_ids"] for g in GOLDENS]
TOKENS = 512


def decoder(device: Device, *settings: str, draft: bool = True) -> CudaDecoder:
    model = load(YAML, settings, draft=draft)
    made = cuda_decoder(model, folders(model, None, None), device)
    assert isinstance(made, CudaDecoder)
    return made


@pytest.fixture(scope="module")
def looped(device: Device) -> CudaDecoder:
    """Eight slots, so that rounds take every row capacity that the budget allows."""
    return decoder(device, "decode.sequences=8")


@pytest.fixture(scope="module")
def texts(device: Device) -> dict[tuple[Sampling, int], list[int]]:
    """Text by sampling and prompt, decoded without a drafter and by the host's launches."""
    plain = decoder(device, "decode.loop_on=host", draft=False)
    return {(s, i): run(plain, [p], TOKENS, s)[0][0] for s in (GREEDY, SAMPLED) for i, p in enumerate(PROMPTS)}


@pytest.mark.parametrize("loop_on", ["device", "host"])
@pytest.mark.parametrize("budget", [4, 7, 15, 31, 63])
def test_loop_equals_plain_decoding(
    budget: int, loop_on: str, device: Device, texts: dict[tuple[Sampling, int], list[int]]
) -> None:
    """8 prompts x 512 tokens: one, three and eight sequences at once."""
    d = decoder(device, "decode.sequences=8", f"tree.budget={budget}", f"decode.loop_on={loop_on}")
    for sampling in (GREEDY, SAMPLED):
        for company in ([[0]], [[1, 2, 3]], [list(range(8))])[: 3 if loop_on == "device" else 2]:
            for group in company:
                got, _ = run(d, [PROMPTS[i] for i in group], TOKENS, sampling)
                assert got == [texts[sampling, i] for i in group], f"{sampling} {group}"
    assert sorted(d.pool.free) == list(range(d.pool.total))


def test_joining_and_leaving(looped: CudaDecoder, texts: dict[tuple[Sampling, int], list[int]]) -> None:
    rng = random.Random(3)
    live: dict[int, tuple[tuple[Sampling, int], int, list[int]]] = {}
    waiting = [(s, i) for s in (GREEDY, SAMPLED) for i in range(8)] * 2
    rng.shuffle(waiting)
    while waiting or live:
        if waiting and len(live) < 8 and rng.random() < 0.3:
            key, tokens = waiting.pop(), rng.choice([1, 40, 200, TOKENS])
            slot, first = looped.start(PROMPTS[key[1]], key[0], tokens)
            live[slot] = (key, tokens, [first])
        for slot, done in looped.round().items():
            key, tokens, text = live[slot]
            text += done.emitted
            assert text[:TOKENS] == texts[key][: len(text)]
            if len(text) >= tokens or rng.random() < 0.01:
                looped.end(slot)
                del live[slot]
    assert sorted(looped.pool.free) == list(range(looped.pool.total))


def test_a_host_that_stalls(device: Device, texts: dict[tuple[Sampling, int], list[int]]) -> None:
    """The GPU has finished when the host comes back after 10 s, and the text is right."""
    d = decoder(device)
    slot, first = d.start(PROMPTS[0], GREEDY, TOKENS)
    text = [first, *d.round()[slot].emitted]
    time.sleep(10)
    assert d.state.unread and not d.state.running and d.device.idle()
    began = time.perf_counter()
    while len(text) < TOKENS:
        text += d.round()[slot].emitted
    assert time.perf_counter() - began < 0.1  # nothing is left to compute
    d.end(slot)
    assert text[:TOKENS] == texts[GREEDY, 0]


def test_the_host_sleeps(looped: CudaDecoder) -> None:
    """Processor time of the process beside the time in which the loop runs."""
    slots = [looped.start(p, GREEDY, TOKENS)[0] for p in PROMPTS]
    looped.round()
    wall, used = time.perf_counter(), time.process_time()
    while looped.state.running:
        time.sleep(0.01)
    wall, used = time.perf_counter() - wall, time.process_time() - used
    for slot in slots:
        looped.end(slot)
    assert wall > 0.05 and used < 0.05 * wall, f"{used:.4f} s of {wall:.4f} s"


def test_max_tokens_at_every_offset(looped: CudaDecoder, texts: dict[tuple[Sampling, int], list[int]]) -> None:
    """The GPU ends a sequence inside an accepted run: no more rounds than the text needs."""
    whole = texts[GREEDY, 5]
    for tokens in range(2, 26):
        slot, first = looped.start(PROMPTS[5], GREEDY, tokens)
        text, rounds = [first], 0
        while len(text) < tokens:
            text += looped.round()[slot].emitted
            rounds += 1
        assert looped.state.head - looped.ahead[slot].first == rounds and looped.ahead[slot].stopped
        looped.end(slot)
        assert text == whole[: len(text)]


def test_stop_ids_on_the_gpu(device: Device, texts: dict[tuple[Sampling, int], list[int]]) -> None:
    """A stop id ends the sequence there; one that goes on past it is the text without a stop."""
    whole = texts[GREEDY, 0]
    d = decoder(device, f"decode.stop.ids=[{whole[9]}, {whole[20]}]")
    slot, first = d.start(PROMPTS[0], GREEDY, 200)
    text = [first]
    stops = 0
    while len(text) < 200:
        text += d.round()[slot].emitted
        stops += d.ahead[slot].stopped
    d.end(slot)
    assert text[:200] == whole[:200] and stops >= 2


def test_pages_run_out(device: Device, texts: dict[tuple[Sampling, int], list[int]]) -> None:
    d = decoder(device, "decode.sequences=2")
    d.pool = PagePool(6, 2, d.pool.context)
    live: dict[int, tuple[int, list[int]]] = {}
    for i in (0, 1):
        slot, first = d.start(PROMPTS[i], GREEDY, TOKENS)
        live[slot] = (i, [first])
    with pytest.raises(UsageError, match="all 6 KV pages"):
        while True:
            for slot, done in d.round().items():
                live[slot][1].extend(done.emitted)
    for i, text in live.values():
        assert text == texts[GREEDY, i][: len(text)]
    assert max(len(PROMPTS[i]) + len(text) for i, text in live.values()) + d.limits.depths > 3 * 64  # pages for each
    d.end(0)
    i, text = live[1]
    while len(PROMPTS[i]) + len(text) < 300:
        text += d.round()[1].emitted
    assert text == texts[GREEDY, i][: len(text)]
    d.end(1)


def test_logits_that_are_nan(looped: CudaDecoder, texts: dict[tuple[Sampling, int], list[int]]) -> None:
    """Pages that turn into NaN while others go on: an error instead of text, and the next request is as good as new."""
    slot, _ = looped.start(PROMPTS[0], GREEDY, TOKENS)
    cache = looped.caches[0]
    assert isinstance(cache, CudaCache)
    page = int(looped.pool.table[slot, 0])
    looped.device.fill(cache.rows + page * cache.unit_bytes, 0xFF, cache.unit_bytes)
    with pytest.raises(DeviceError, match="logits are NaN"):
        looped.round()
    looped.end(slot)
    assert run(looped, [PROMPTS[0]], TOKENS)[0] == [texts[GREEDY, 0]]


def test_interrupt(device: Device, texts: dict[tuple[Sampling, int], list[int]]) -> None:
    """Ctrl-C while the host waits: the text so far is right, the loop ends, and the next request is as good as new."""
    model = load(YAML, ())
    where = folders(model, None, None)
    e = Engine(model, cuda_decoder(model, where, device), Tokenizer(model.target.spec.text, where.target))
    for delay in (0.0, 0.003, 0.02):
        results = []
        pieces = e.generate(Request(tuple(PROMPTS[0]), 3000))
        with pytest.raises(KeyboardInterrupt):
            for _, result in pieces:
                results.append(result)
                if len(results) == 2:
                    threading.Timer(delay, _thread.interrupt_main).start()
        pieces.close()
        got = results[-1].output_ids[:TOKENS]
        assert len(got) > 1 and got == texts[GREEDY, 0][: len(got)]
        assert not e.decoder.slots and sorted(e.decoder.pool.free) == list(range(e.decoder.pool.total))
    assert run(e.decoder, [PROMPTS[5]], 96)[0] == [GOLDENS[5]["greedy_ids"]]
