"""Rounding: what FP32 arithmetic becomes when kernels store BF16. The table of rounding points is docs/numerics.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

Array = np.ndarray


class Precision(StrEnum):
    """`fp32` never rounds (goldens, oracle); `bf16` rounds wherever a kernel stores BF16."""

    FP32 = "fp32"
    BF16 = "bf16"


def round_bf16(x: Array) -> Array:
    """Round to the nearest BF16 value, ties to even; the result stays float32. NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))


@dataclass(frozen=True)
class Numerics:
    """The rounding rule of one run; every activation is a float32 array that holds representable values."""

    precision: Precision = Precision.FP32

    def store(self, x: Array) -> Array:
        """What remains of `x` after a kernel has stored it as BF16 and another has read it back."""
        return round_bf16(x) if self.precision is Precision.BF16 else np.asarray(x, np.float32)


def linear_rows(x: Array, weight: Array) -> Array:
    """`x @ weight.T`, one row at a time: [rows, k] and [n, k] give [rows, n] in float32.

    A matrix product over all rows would let a library choose blocking by the number of rows, and with it the order of
    the sums. One product per row keeps a row's bits independent of its company.
    """
    y = np.empty((x.shape[0], weight.shape[0]), np.float32)
    for r in range(x.shape[0]):
        np.dot(weight, x[r], out=y[r])
    return y


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow, in float32."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(np.float32)


def silu(x: Array) -> Array:
    """x * sigmoid(x), in float32."""
    return x * sigmoid(x)


def softmax(x: Array) -> Array:
    """Softmax over the last axis in float32."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
