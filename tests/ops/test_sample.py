"""Sample: greedy and drawn tokens equal the reference; what top-k and top-p keep equals a plain oracle."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from ddtree.graph.op import Op
from ddtree.graph.ops import Sample
from ddtree.graph.ops.sample import allowed, gumbel, philox
from ddtree.graph.rows import RowTable
from tests.emulator import Module, guarded
from tests.ops.harness import (
    ROW_COUNTS,
    assert_same_bits,
    check_row_invariance,
    check_schedules,
    decode_rows,
    emulate,
    make,
    prompt_rows,
    reference,
    tensor,
    tree_rows,
)

VOCAB = 4096
TYPES = {"temperature": "fp32", "top_k": "int32", "top_p": "fp32", "seed": "int64"}


def sampling(rows: int, vocab: int = VOCAB, sequences: int = 64, domain: str = "rows") -> Op:
    request = {name: tensor(sequences, dtype=dtype, domain="sequences") for name, dtype in TYPES.items()}
    return make(Sample, logits=tensor(rows, vocab, dtype="fp32", domain=domain), **request)


def requests(rng: np.random.Generator, sequences: int, vocab: int = VOCAB, **given: Any) -> dict[str, np.ndarray]:
    """Every kind of request in turn: greedy, unfiltered, top-k, top-p, both."""
    kind = np.arange(sequences) % 5
    made = {
        "temperature": np.where(kind == 0, 0, rng.uniform(0.5, 1.5, sequences)),
        "top_k": np.where((kind == 2) | (kind == 4), rng.integers(1, min(vocab, 100) + 1, sequences), 0),
        "top_p": np.where(kind >= 3, rng.uniform(0.05, 0.999, sequences), 1),
        "seed": rng.integers(-(2**62), 2**62, sequences),
    }
    types = {"fp32": np.float32, "int32": np.int32, "int64": np.int64}
    return {name: np.broadcast_to(given.get(name, x), x.shape).astype(types[TYPES[name]]) for name, x in made.items()}


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (3 * rng.standard_normal(shape)).astype(np.float32)


def close_calls(inputs: dict[str, np.ndarray], rows: RowTable) -> np.ndarray:
    """Rows that fp32 rounding of exponentials and logarithms may decide: the two best differ by less than 1e-4."""
    wanted = np.arange(len(rows)) if rows.wanted is None else rows.wanted
    gaps = []
    for i, r in enumerate(wanted):
        s, x = rows.sequence[r], inputs["logits"][i]
        if inputs["temperature"][s] == 0 or len(x) == 1:
            gaps.append(np.inf)
            continue
        kept = allowed(x, *(inputs[name][s] for name in ("temperature", "top_k", "top_p")))
        score = np.sort(kept + gumbel(int(inputs["seed"][s]), int(rows.position[r]) + 1, len(x)))
        gaps.append(np.inf if score[-2] == -np.inf else score[-1] - score[-2])
    return np.array(gaps) < 1e-4


def check(op: Op, inputs: dict[str, np.ndarray], rows: RowTable, run: Any = emulate) -> np.ndarray:
    got, want = run(op, inputs, rows)["token"], reference(op, inputs, rows)["token"]
    clear = ~close_calls(inputs, rows)
    assert clear.mean() > 0.9
    assert_same_bits(got[clear], want[clear], "token")
    return want


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_equals_the_reference(rows: int, rng: np.random.Generator) -> None:
    table = decode_rows(rng.integers(0, 200, rows).tolist())
    check(sampling(64), {"logits": normal(rng, rows, VOCAB), **requests(rng, rows)}, table)


@pytest.mark.parametrize("vocab", [1, 2, 7, 4095, 4097, 20480])
def test_any_vocabulary(vocab: int, rng: np.random.Generator) -> None:
    inputs = {"logits": normal(rng, 10, vocab), **requests(rng, 10, vocab)}
    check(sampling(16, vocab), inputs, decode_rows(list(range(10))))


def test_the_production_vocabulary(rng: np.random.Generator) -> None:
    inputs = {"logits": normal(rng, 5, 163840), **requests(rng, 5)}
    check(sampling(8, 163840), inputs, decode_rows([5] * 5))


def test_rows_of_a_sequence_share_its_request(rng: np.random.Generator) -> None:
    rows = tree_rows([9, 70, 3], [12, 0, 20])
    check(sampling(64, sequences=4), {"logits": normal(rng, 32, VOCAB), **requests(rng, 3)}, rows)


def test_wanted_rows(rng: np.random.Generator) -> None:
    rows = prompt_rows([5, 0, 70, 1])
    want = check(
        sampling(128, sequences=4, domain="wanted"), {"logits": normal(rng, 3, VOCAB), **requests(rng, 4)}, rows
    )
    assert len(want) == 3


def test_more_rows_than_a_grid_holds(rng: np.random.Generator) -> None:
    inputs = {"logits": normal(rng, 70, 300), **requests(rng, 5, temperature=1)}
    check(sampling(80, 300, sequences=5), inputs, dataclasses.replace(prompt_rows([14] * 5), wanted=None))


def test_a_token_does_not_depend_on_the_tree(rng: np.random.Generator) -> None:
    """The same logits at the same position with the same seed give the same token in a tree and in plain decoding."""
    tree = tree_rows([9, 30], [8, 8])
    logits, request = normal(rng, 16, VOCAB), requests(rng, 2, temperature=1)
    together = emulate(sampling(64), {"logits": logits, **request}, tree)["token"]
    for r in range(16):
        committed = [0, 0]
        committed[tree.sequence[r]] = int(tree.position[r])
        alone = tree_rows(committed, [int(s == tree.sequence[r]) for s in range(2)])
        assert_same_bits(emulate(sampling(64), {"logits": logits[[r]], **request}, alone)["token"], together[[r]])


def test_greedy_takes_the_lowest_id_of_equal_logits(rng: np.random.Generator) -> None:
    logits = np.round(normal(rng, 4, VOCAB))
    logits[1] = -3
    logits[2] = np.where(rng.random(VOCAB) < 0.5, np.float32(-0.0), np.float32(0.0))
    logits[3, 100:] = -np.inf
    want = check(sampling(8), {"logits": logits, **requests(rng, 4, temperature=0)}, decode_rows([3] * 4))
    assert want[1:3].tolist() == [0, 0]


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_a_row_without_a_distribution_has_no_token(bad: float, rng: np.random.Generator) -> None:
    logits = normal(rng, 11, 9001)
    logits[np.arange(5), [0, 9000, 4095, 4096, 77]] = bad
    logits[5:10] = -np.inf
    inputs = {"logits": logits, **requests(rng, 11)}
    for run in (emulate, reference):
        token = run(sampling(16, 9001), inputs, decode_rows([3] * 11))["token"]
        assert token[:10].tolist() == [-1] * 10 and token[10] >= 0


def test_masked_tokens_are_never_drawn(rng: np.random.Generator) -> None:
    logits = normal(rng, 20, VOCAB)
    logits[:, rng.permutation(VOCAB)[:-3]] = -np.inf
    want = check(sampling(32), {"logits": logits, **requests(rng, 20)}, decode_rows(list(range(20))))
    assert (logits[np.arange(20), want] > -np.inf).all()


def test_draws_follow_the_distribution(rng: np.random.Generator) -> None:
    """Chi-square of 3,840 draws over 8 tokens, 7 degrees of freedom: 24.3 is exceeded once in a thousand times."""
    logits, drawn = normal(rng, 1, 8), np.zeros(8)
    inputs = {"logits": np.repeat(logits, 60, 0), **requests(rng, 1, temperature=1.5, top_k=0, top_p=1, seed=11)}
    for first in range(0, 3840, 60):
        rows = prompt_rows([60], start=[first])
        token = emulate(sampling(64, 8), inputs, dataclasses.replace(rows, wanted=None))["token"]
        drawn += np.bincount(token, minlength=8)
    p = np.exp(logits[0].astype(np.float64) / 1.5)
    expected = 3840 * p / p.sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 24.3


def test_a_row_does_not_depend_on_its_company(rng: np.random.Generator) -> None:
    inputs = {"logits": normal(rng, 64, 5000), **requests(rng, 64)}
    check_row_invariance(sampling(64, 5000), inputs, decode_rows([3] * 64), counts=(1, 7, 33, 64))


def test_every_schedule(rng: np.random.Generator) -> None:
    inputs = {"logits": np.round(normal(rng, 5, 4097) * 4) / 4, **requests(rng, 5)}
    check_schedules(sampling(8, 4097), inputs, decode_rows([3] * 5))


# ---- random numbers -------------------------------------------------------------------------------------------------

_WORDS = """
#include "ddtree/philox.cuh"
KERNEL(64) words(const u32* counters, const u64* keys, u32* out, float* noise) {
    const uint4 c = make_uint4(counters[4 * threadIdx.x], counters[4 * threadIdx.x + 1], counters[4 * threadIdx.x + 2],
                               counters[4 * threadIdx.x + 3]);
    const uint4 made = ddtree::philox4x32(c, keys[threadIdx.x]);
    out[4 * threadIdx.x] = made.x;
    out[4 * threadIdx.x + 1] = made.y;
    out[4 * threadIdx.x + 2] = made.z;
    out[4 * threadIdx.x + 3] = made.w;
    noise[threadIdx.x] = ddtree::gumbel(keys[threadIdx.x], int(c.y), int(c.x));
}
"""


def device_words(counters: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The four words and the noise of each counter [n, 4] and key [n]; n must be at most 64."""
    out, noise = np.zeros((len(keys), 4), np.uint32), np.zeros(len(keys), np.float32)
    arrays = (np.ascontiguousarray(counters, np.uint32), np.ascontiguousarray(keys, np.uint64), out, noise)
    Module(_WORDS, ["words"]).launch("words", 1, len(keys), arrays)
    return out, noise


def test_philox_gives_the_known_answers_of_its_authors() -> None:
    """kat_vectors of Random123: philox4x32, 10 rounds."""
    counters = [[0] * 4, [0xFFFFFFFF] * 4, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]]
    keys = [0, 0xFFFFFFFFFFFFFFFF, 0x299F31D0A4093822]
    words, _ = device_words(np.array(counters), np.array(keys, np.uint64))
    assert words.tolist() == [
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ]


def test_words_and_noise_equal_the_reference(rng: np.random.Generator) -> None:
    for seed, position in [(0, 0), (-1, 5), (2**62 + 12345, 262143), (int(rng.integers(2**60)), 77)]:
        tokens = np.arange(64)
        counters = np.stack([tokens, np.full(64, position), np.zeros(64), np.zeros(64)], 1)
        words, noise = device_words(counters, np.full(64, seed & (2**64 - 1), np.uint64))
        assert_same_bits(words[:, 0].copy(), philox(seed, position, 64), "words")
        np.testing.assert_allclose(noise, gumbel(seed, position, 64), rtol=1e-5, atol=1e-6)


def test_noise_is_finite() -> None:
    """The word next to 2**32 rounds to a fraction of 1: its noise must not be -inf, nor may that of word 0 be +inf."""
    source = (
        '#include "ddtree/philox.cuh"\n'
        "KERNEL(2) noise(const u32* words, float* out) { out[threadIdx.x] = ddtree::gumbel_of(words[threadIdx.x]); }"
    )
    out = np.zeros(2, np.float32)
    Module(source, ["noise"]).launch("noise", 1, 2, (np.array([0, 2**32 - 1], np.uint32), out))
    np.testing.assert_allclose(out, [-np.log(-np.log1p(-(2.0**-33))), -np.log(-np.log(2.0**-24))], rtol=1e-5)


# ---- filters --------------------------------------------------------------------------------------------------------

_FILTER = """
#include "ddtree/sample.cuh"
struct Config {
    static constexpr int vocab = 1000, threads = 512, smem = sizeof(ddtree::Histogram);
};
KERNEL(512) keep(const float* logits, float temperature, int top_k, float top_p, u64* keys) {
    const ddtree::Draw draw = {temperature, top_p, top_k, 0, 0, true};
    u64 best = 0;
    ddtree::each_key<Config, 1>(logits, draw, [&](u64 key) { best = max(best, key); });
    best = ddtree::block_max<Config::threads>(best);
    const u64 lowest = ddtree::lowest_kept<Config>(logits, draw, best);
    ddtree::each_key<Config, 1>(logits, draw, [&](u64 key) { keys[ddtree::id_of(key)] = key >= lowest; });
}
"""


def device_kept(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Which of the 1,000 tokens the filter's search keeps, [vocab] bool."""
    kept = guarded(np.zeros(1000, np.uint64))
    arguments = (logits, np.float32(temperature), np.int32(top_k), np.float32(top_p), kept)
    Module(_FILTER, ["keep"]).launch("keep", 1, 512, arguments, 3 * 4 * 2048 + 16)
    return kept.astype(bool)


def plainly_kept(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> tuple[np.ndarray, bool]:
    """The definition, one token after the other in fp64; and whether the kernel's rounding of exponentials (far below 1e-6
    of the whole) could move the boundary."""
    scaled = (logits / np.float32(temperature)).astype(np.float64)
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))[: top_k or None]
    mass = [float(np.exp(scaled[i] - scaled[order[0]])) for i in order]
    whole, before = math.fsum(mass), 0.0
    kept, close = np.zeros(len(scaled), bool), False
    for i, m in zip(order, mass, strict=True):
        kept[i] = before < float(np.float32(top_p)) * whole or top_p >= 1 or i == order[0]
        close |= top_p < 1 and i != order[0] and abs(before / whole - top_p) < 1e-6
        before += m
    return kept, close


def filter_cases(rng: np.random.Generator, kind: str, count: int) -> list[tuple[np.ndarray, float, int, float]]:
    cases = []
    for i in range(count):
        logits = (rng.uniform(0.01, 8) * rng.standard_normal(1000) + rng.uniform(-50, 50)).astype(np.float32)
        if kind == "tied":
            logits = np.round(logits)
        if kind == "masked":
            logits[rng.random(1000) < 0.9] = -np.inf
        top_k = int(rng.integers(1, 1000)) if i % 3 else 0
        top_p = float(rng.choice([rng.uniform(0, 1), 0.95, 0.9999, 1e-9])) if i % 3 != 1 else 1.0
        cases.append((logits, float(rng.uniform(0.05, 2)), top_k, top_p))
    return cases


@pytest.mark.parametrize("kind", ["normal", "tied", "masked"])
def test_what_the_filters_keep_is_exact(kind: str, rng: np.random.Generator) -> None:
    judged = 0
    for case in filter_cases(rng, kind, 60):
        want, close = plainly_kept(*case)
        if close:
            continue
        assert_same_bits(device_kept(*case), want, "kernel")
        scaled = allowed(*case)
        assert_same_bits(scaled > -np.inf, want & (case[0] > -np.inf), "reference")
        judged += 1
    assert judged > 40


def test_equal_probabilities_are_kept_by_id() -> None:
    """A flat distribution: the nucleus of 0.35 of 1,000 tokens is the first 350."""
    flat = np.full(1000, 2.5, np.float32)
    assert np.flatnonzero(device_kept(flat, 1, 0, 0.35)).tolist() == list(range(350))
    assert np.flatnonzero(device_kept(flat, 1, 17, 1.0)).tolist() == list(range(17))
    assert np.flatnonzero(device_kept(flat, 1, 100, 0.5)).tolist() == list(range(50))
    assert np.flatnonzero(device_kept(flat, 1, 0, 0.0)).tolist() == [0]


def nucleus_of_twelve(kept: int) -> tuple[np.ndarray, float]:
    """Logits of 12 tokens (one best, eight equal, three equal) and a top_p that keeps exactly the first `kept` <= 9.

    For 9 the limit lies closer to the mass of the nine than the carries of their low words are worth: 2**32 each.
    """
    logits = np.array([0] + [-0.3] * 8 + [-0.5] * 3, np.float32)
    mass = [int(np.exp(x) * np.float32(2**40)) for x in logits]
    carries = 8 * (mass[1] % 2**32) // 2**32
    assert carries >= 2
    limit = sum(mass[:kept]) - (carries * 2**31 if kept == 9 else mass[1] // 2)
    return logits, limit / sum(mass)


def check_twelve(kept: int, run: Any = emulate) -> None:
    """60 draws meet every kept token and no other."""
    logits, top_p = nucleus_of_twelve(kept)
    request = requests(np.random.default_rng(3), 1, temperature=1, top_k=0, top_p=top_p)
    inputs = {"logits": np.repeat(logits[None], 60, 0), **request}
    rows = dataclasses.replace(prompt_rows([60]), wanted=None)
    assert set(check(sampling(64, 12), inputs, rows, run).tolist()) == set(range(kept))


@pytest.mark.parametrize("kept", [1, 2, 5, 9])
def test_the_boundary_lies_between_tokens(kept: int) -> None:
    check_twelve(kept)


def catches(run: Any) -> None:
    rng = np.random.default_rng(1)
    logits = np.round(normal(rng, 20, 4097) * 2) / 2
    logits[5, 4096], logits[6] = np.nan, np.abs(logits[6])
    logits[0, [9, 4096]] = 40
    rows = decode_rows(rng.integers(0, 99, 20).tolist())
    check(sampling(32, 4097), {"logits": logits, **requests(rng, 20)}, rows, run)
    check_twelve(5, run)
    check_twelve(9, run)
    flat, some = {"logits": np.zeros((60, 12), np.float32)}, dataclasses.replace(prompt_rows([60]), wanted=None)
    check(sampling(64, 12), {**flat, **requests(rng, 1, temperature=1, top_k=0, top_p=0.25)}, some, run)
    check(sampling(64, 12), {**flat, **requests(rng, 1, temperature=1, top_k=5, top_p=1)}, some, run)
    last = {"logits": normal(rng, 3, 4097), **requests(rng, 3, temperature=1, top_k=0, top_p=1)}
    check(sampling(64, 4097, domain="wanted"), last, prompt_rows([9, 20, 7]), run)
