"""Rotary embedding against published check values, and the properties that attention relies on."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ddtree.graph.ops import MlaTreeAttention
from ddtree.graph.rope import Layout, Rope, Yarn, yarn_gain
from tests.graph.graphs import model, undivided

KIMI = Yarn(factor=64, original=4096, beta_fast=32, beta_slow=1, mscale=1, mscale_all_dim=1)


@pytest.mark.parametrize(
    ("dim", "values"),
    [
        (64, {0: 1.0, 1: 0.7131110849, 8: 0.06687403050, 9: 0.04377665595, 14: 0.004465848749, 19: 1.583749910e-4,
              20: 1.807023387e-5, 31: 4.382206456e-7}),
        (128, {0: 1.0, 17: 0.056472380, 18: 0.045554818, 28: 0.0044658487, 39: 2.1398591e-5, 63: 3.7005939e-7}),
    ],
    ids=["target", "drafter"],
)  # fmt: skip
def test_yarn_frequencies(dim: int, values: dict[int, float]) -> None:
    inverse = Rope("r", dim, 50000, "interleaved", KIMI).inverse_frequencies()
    assert len(inverse) == dim // 2
    for i, value in values.items():
        assert inverse[i] == pytest.approx(value, rel=2e-8 if value > 1e-8 else 1e-6), i


def test_the_shipped_files_give_these_rules() -> None:
    big = model("kimi_k26")
    assert big.drafter is not None
    target, drafter = big.target.ropes["main"], big.drafter.ropes["main"]
    assert (target.dim, target.layout, target.yarn) == (64, "interleaved", KIMI)
    assert (drafter.dim, drafter.layout, drafter.yarn) == (128, "half", KIMI)
    assert target.gain == drafter.gain == 1.0


def test_attention_scale() -> None:
    assert yarn_gain(64, 1) == pytest.approx(1 + 0.1 * math.log(64), abs=1e-15) == pytest.approx(1.41588831, abs=5e-9)
    attention = next(op for op in undivided("kimi_k26", "verify").ops if isinstance(op, MlaTreeAttention))
    assert attention.scale == pytest.approx(0.1446796258, abs=5e-11)


def test_amplitude() -> None:
    legacy = dataclasses.replace(KIMI, mscale_all_dim=0)
    assert Rope("r", 64, 50000, "half", legacy).gain == pytest.approx(1.4158883, abs=1e-7)
    given = Rope("r", 64, 50000, "half", KIMI, amplitude=1.4158883)
    assert given.gain == 1.4158883
    cos, sin = given.cos_sin(np.arange(5))
    assert np.allclose(np.hypot(cos, sin), 1.4158883)
    assert Rope("r", 64, 50000, "half").gain == yarn_gain(1, 5) == 1.0


def test_plain_frequencies_are_powers_of_theta() -> None:
    assert Rope("r", 8, 10000, "half").inverse_frequencies() == pytest.approx([1, 0.1, 0.01, 0.001])


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_a_rotation_is_that_of_complex_pairs(layout: Layout) -> None:
    rule, rng = Rope("r", 16, 50000, layout, KIMI), np.random.default_rng(0)
    x, position = rng.standard_normal((6, 3, 16)).astype(np.float32), np.array([0, 1, 7, 4095, 70000, 262143])
    angle = (position[:, None] * rule.inverse_frequencies())[:, None]
    first, second = (x[..., 0::2], x[..., 1::2]) if layout == "interleaved" else (x[..., :8], x[..., 8:])
    want = (first + 1j * second) * np.exp(1j * angle)
    y = rule.rotate(x, position)
    got = y[..., 0::2] + 1j * y[..., 1::2] if layout == "interleaved" else y[..., :8] + 1j * y[..., 8:]
    assert np.allclose(got, want, atol=0.1)  # fp32 angles at position 262143 are good to 1/64 radian
    assert np.allclose(got[:4], want[:4], atol=2e-3) and (y[0] == x[0]).all()


def test_scores_depend_on_the_distance_alone() -> None:
    rule, rng = Rope("r", 32, 50000, "half"), np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 32)).astype(np.float32)

    def score(a: int, b: int) -> float:
        return float((rule.rotate(q, np.array([a])) @ rule.rotate(k, np.array([b])).T)[0, 0])

    assert score(105, 100) == pytest.approx(score(5, 0), abs=1e-4)
    assert not math.isclose(score(5, 0), score(6, 0), abs_tol=1e-2)


def test_the_layouts_differ_by_a_permutation() -> None:
    x, position = np.random.default_rng(2).standard_normal((4, 16)).astype(np.float32), np.array([3, 9, 27, 81])
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    interleaved, half = (Rope("r", 16, 50000, layout).rotate for layout in ("interleaved", "half"))
    assert (interleaved(x, position)[:, order] == half(x[:, order], position)).all()
