"""Rounding to BF16 and the functions that the definitions are made of."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ddtree.graph.numerics import Numerics, Precision, linear_rows, round_bf16, sigmoid, silu, softmax


@pytest.mark.parametrize("low", [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_round_bf16_is_nearest_even_for_every_upper_half(low: int) -> None:
    bits = (np.arange(1 << 16, dtype=np.uint32) << 16) | np.uint32(low)
    x = bits.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    got = round_bf16(x)
    assert (np.isnan(got) == np.isnan(x)).all()
    finite = ~np.isnan(x)
    assert (got[finite].view(np.uint32) == want[finite].view(np.uint32)).all()


def test_round_bf16_of_random_bits() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
    x = bits.view(np.float32)[~np.isnan(bits.view(np.float32))]
    with np.errstate(over="ignore"):
        want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert (round_bf16(x).view(np.uint32) == want.view(np.uint32)).all()


def test_only_bf16_precision_rounds() -> None:
    x = np.array([1.001], np.float32)
    assert Numerics(Precision.FP32).store(x)[0] == x[0]
    assert Numerics(Precision.BF16).store(x)[0] == 1.0


def test_functions_stay_finite_at_the_ends() -> None:
    x = np.array([-1e4, -90, -1, 0, 1, 90, 1e4], np.float32)
    with np.errstate(all="raise", under="ignore"):
        s, y, p = sigmoid(x), silu(x), softmax(x)
    assert s[0] == 0 and s[-1] == 1 and s[3] == 0.5 and np.allclose(s + s[::-1], 1)
    assert y[0] == 0 and y[-1] == np.float32(1e4) and p.sum() == pytest.approx(1)


def test_a_product_of_one_row_is_the_product_among_others() -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((65, 257), (130, 257)))
    together = linear_rows(x, w)
    assert np.allclose(together, x.astype(np.float64) @ w.T.astype(np.float64), atol=1e-4)
    for r in (0, 1, 33, 64):
        assert (linear_rows(x[r : r + 1], w)[0] == together[r]).all()
