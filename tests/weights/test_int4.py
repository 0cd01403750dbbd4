"""INT4: packing, one rounding of q * scale, and which scales are refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree.runtime.weights.int4 import Int4, bad_scale, pack, unpack
from tests.weights.build import bf16


def nibble(words: np.ndarray, o: int, k: int) -> int:
    """q[o, k] by the definition, one bit field at a time."""
    return (int(words[o, k // 8]) >> (4 * (k % 8)) & 15) - 8


def test_known_word() -> None:
    assert unpack(np.array([0x7654_3210], np.uint32)).tolist() == [-8, -7, -6, -5, -4, -3, -2, -1]
    assert pack(np.array([7, 6, 5, 4, 3, 2, 1, 0])).tolist() == [0x89AB_CDEF]


@given(words=st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
def test_unpack_is_the_definition_and_pack_its_inverse(words: list[int]) -> None:
    packed = np.array(words, np.uint32).reshape(2, 3)
    q = unpack(packed)
    assert q.tolist() == [[nibble(packed, o, k) for k in range(24)] for o in range(2)]
    np.testing.assert_array_equal(pack(q), packed)


def test_unpack_of_columns_and_of_stacks() -> None:
    packed = np.random.default_rng(0).integers(0, 2**32, (3, 4, 6), dtype=np.uint32)
    np.testing.assert_array_equal(unpack(packed[:, :, 2:4]), unpack(packed)[:, :, 16:32])


@pytest.mark.parametrize(("q", "message"), [([8] * 8, "-8, 7"), ([-9] * 8, "-8, 7"), ([0] * 7, "multiple of 8")])
def test_pack_refuses(q: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(np.array(q))


def test_dequantise_rounds_the_product_once_and_keeps_it_in_either_dtype() -> None:
    rng = np.random.default_rng(1)
    q = rng.integers(-8, 8, (2, 3, 64))
    scale = bf16(rng.uniform(1e-3, 1, (2, 3, 2)))
    weight = Int4(pack(q), scale, 32)
    exact = q * np.repeat(scale.astype(np.float64), 32, axis=-1)
    assert weight.shape == (2, 3, 64)
    assert weight.dequantise().dtype == np.float32
    np.testing.assert_array_equal(weight.dequantise(), exact.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(weight.dequantise(ml_dtypes.bfloat16), exact.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(weight[1].dequantise(), weight.dequantise()[1])
    assert (weight.dequantise() != exact).any()  # the rounding is really there


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_scales_that_would_give_a_weight_that_is_not_finite(value: float) -> None:
    scale = bf16(np.full((2, 3), 0.5))
    assert bad_scale(scale) is None
    scale[1, 2] = value
    assert bad_scale(scale) == (1, 2)


def test_the_largest_accepted_scale_is_the_largest_that_stays_finite() -> None:
    bits = np.arange(0x7F80, dtype=np.uint16)
    scale = bits.view(ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):
        finite = np.isfinite((scale.astype(np.float32) * 8).astype(ml_dtypes.bfloat16))
    accepted = np.array([bad_scale(scale[i : i + 1]) is None for i in range(0x7D00, 0x7F80)])
    np.testing.assert_array_equal(accepted, finite[0x7D00:])
