"""Symmetric group-quantised INT4 matrices in the pack-quantized layout of compressed-tensors.

    q[o, 8*w + i] = ((packed[o, w] >> (4*i)) & 15) - 8        i = 0..7, q in [-8, 7]
    W[o, k]       = bf16(q[o, k] * scale[o, k // group])

Eight columns of the input axis fill a 32-bit word, least significant nibble first; there is no zero point. The product is
exact in FP32 (4 bits times 8 bits), so that it is rounded to BF16 once, as compressed-tensors' own reference does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
WORD = np.dtype("<u4")
# Magnitude bits of the largest BF16 whose product with -8 is finite; NaN and Inf compare greater.
_MAX_SCALE_BITS = 0x7F7F - (3 << 7)
_AT_ONCE = 1 << 17  # elements


def _pairs() -> np.ndarray:
    """uint16 [256]: the two int8 values of a packed byte, side by side in memory."""
    byte = np.arange(256, dtype=np.uint8)
    q = np.stack([byte & 15, byte >> 4], axis=-1).astype(np.int8) - np.int8(8)
    return q.view(np.uint16)[:, 0]


_PAIRS = _pairs()


def unpack(packed: np.ndarray) -> np.ndarray:
    """int8 [..., 8*words] in [-8, 7] of 32-bit words [..., words]."""
    raw = np.ascontiguousarray(packed).view(np.uint8)
    return _PAIRS[raw].view(np.int8)


def pack(q: np.ndarray) -> np.ndarray:
    """uint32 [..., in/8] of integers [..., in] in [-8, 7]; ValueError for others or for an `in` that is no multiple of 8."""
    if q.shape[-1] % 8:
        raise ValueError(f"the input axis must be a multiple of 8, got {q.shape[-1]}")
    if q.size and (q.min() < -8 or q.max() > 7):
        raise ValueError(f"INT4 values lie in [-8, 7], got {q.min()}..{q.max()}")
    nibble = (q.astype(np.int8) + np.int8(8)).view(np.uint8)
    return np.ascontiguousarray(nibble[..., 0::2] | nibble[..., 1::2] << 4).view(WORD)


def bad_scale(scale: np.ndarray) -> tuple[int, ...] | None:
    """Index of the first scale (BF16) that is NaN, Inf or so large that a weight would overflow BF16; None if all are fit."""
    return first_magnitude_above(scale, _MAX_SCALE_BITS)


def first_magnitude_above(array: np.ndarray, most: int) -> tuple[int, ...] | None:
    """Index of the first BF16 value whose bits without the sign are above `most`; NaN and Inf are above all others."""
    bits = array.view(np.uint16)
    flat = bits.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):  # what a processor's cache holds: several times faster than all at once
        if (flat[start : start + _AT_ONCE] & 0x7FFF).max() > most:
            return tuple(int(i) for i in np.argwhere((bits & 0x7FFF) > most)[0])
    return None


@dataclass(frozen=True)
class Int4:
    """A rank's part of an INT4 weight, still packed.

    packed  uint32 [count?, out, in/8]
    scale   bfloat16 [count?, out, in/group]
    group   weights along the input axis that share a scale
    """

    packed: np.ndarray
    scale: np.ndarray
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the unpacked weight."""
        return (*self.packed.shape[:-1], self.packed.shape[-1] * 8)

    @property
    def nbytes(self) -> int:
        """Bytes of words and scales."""
        return self.packed.nbytes + self.scale.nbytes

    def __getitem__(self, expert: int) -> Int4:
        """One matrix of a stack, sharing its memory."""
        return Int4(self.packed[expert], self.scale[expert], self.group)

    def dequantise(self, dtype: Any = np.float32) -> np.ndarray:
        """bf16(q * scale) [count?, out, in] as `dtype`, float32 or bfloat16: the values are the same."""
        q = unpack(self.packed).reshape(*self.scale.shape, self.group)
        product = q * self.scale.astype(np.float32)[..., None]
        return product.astype(BF16).astype(dtype, copy=False).reshape(self.shape)
