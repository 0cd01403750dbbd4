"""Rotary position embedding: frequencies and amplitude, plain and YaRN, in both layouts.

Sources: Su et al. 2021 (RoPE), Peng et al. 2023 (YaRN, "NTK by parts").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

Layout = Literal["interleaved", "half"]


@dataclass(frozen=True)
class Yarn:
    """YaRN's parameters. `original` is the trained context in positions; betas are rotations over that context."""

    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float


def yarn_gain(factor: float, mscale: float) -> float:
    """YaRN's attention gain, `0.1 * mscale * ln(factor) + 1` (1 for a factor of at most 1)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True)
class Rope:
    """One rotation rule.

    dim        elements rotated, even
    theta      base of the frequencies
    layout     pair i is elements (2i, 2i+1) (`interleaved`) or (i, i + dim/2) (`half`)
    yarn       None for plain RoPE
    amplitude  factor on cos and sin; None derives it from YaRN's mscale values
    softmax    whether attention that uses this rule multiplies its scale by yarn_gain(mscale_all_dim)**2
    """

    name: str
    dim: int
    theta: float
    layout: Layout
    yarn: Yarn | None = None
    amplitude: float | None = None
    softmax: bool = False

    @property
    def gain(self) -> float:
        """Factor on cos and sin."""
        if self.amplitude is not None:
            return self.amplitude
        if self.yarn is None:
            return 1.0
        return yarn_gain(self.yarn.factor, self.yarn.mscale) / yarn_gain(self.yarn.factor, self.yarn.mscale_all_dim)

    @property
    def softmax_gain(self) -> float:
        """Factor on the softmax scale of attention that uses this rule."""
        return yarn_gain(self.yarn.factor, self.yarn.mscale_all_dim) ** 2 if self.softmax and self.yarn else 1.0

    def inverse_frequencies(self) -> np.ndarray:
        """Radians per position of each pair, [dim/2] float64."""
        plain = self.theta ** (-np.arange(0, self.dim, 2) / self.dim)
        if self.yarn is None:
            return plain
        yarn = self.yarn

        def pair(rotations: float) -> float:
            return self.dim * math.log(yarn.original / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))

        low = max(math.floor(pair(yarn.beta_fast)), 0)
        high = min(math.ceil(pair(yarn.beta_slow)), self.dim - 1)
        ramp = np.clip((np.arange(self.dim // 2) - low) / ((high - low) or 0.001), 0, 1)
        return plain * (1 - ramp) + plain / yarn.factor * ramp

    def cos_sin(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin, gain included: [rows] positions give two [rows, dim/2] float32 arrays; angles are FP32."""
        angles = positions.astype(np.float32)[:, None] * self.inverse_frequencies().astype(np.float32)[None]
        return (np.cos(angles) * np.float32(self.gain)), (np.sin(angles) * np.float32(self.gain))

    def rotate(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Rotate the last axis of [rows, ..., dim] by each row's position; float32."""
        cos, sin = self.cos_sin(positions)
        shape = (x.shape[0],) + (1,) * (x.ndim - 2) + (self.dim // 2,)
        cos, sin = cos.reshape(shape), sin.reshape(shape)
        half = self.dim // 2
        first, second = (
            (slice(0, None, 2), slice(1, None, 2))
            if self.layout == "interleaved"
            else (slice(0, half), slice(half, None))
        )
        y = np.empty_like(x, dtype=np.float32)
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., second] * cos + x[..., first] * sin
        return y
