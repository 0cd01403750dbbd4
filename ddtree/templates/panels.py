"""Weight panels: 8 rows x 64 columns of a matrix, in the order in which tensor cores take them (include/ddtree/panel.cuh)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

ROWS, COLUMNS = 8, 64  # of a panel
GROUP = 32  # columns that share an INT4 scale; a panel has two groups
BF16_BYTES, INT4_BYTES = 1024, 288  # of a panel
_EIGHT_ZEROS = np.uint32(0x88888888)  # eight nibbles that mean 0


class Quantised(Protocol):
    """What is needed of runtime.weights.int4.Int4."""

    @property
    def packed(self) -> np.ndarray:
        """uint32 [..., out, in / 8], nibbles in column order, the first in the lowest bits, stored + 8."""

    @property
    def scale(self) -> np.ndarray:
        """bfloat16 [..., out, in / 32]."""


def count(columns: int) -> int:
    """Panels along an input axis of `columns` elements, the last one possibly half empty."""
    return -(-columns // COLUMNS)


def bf16_panels(weight: np.ndarray) -> np.ndarray:
    """bf16 [..., out, in] -> the same dtype [..., out / 8, panels, 2, 8, 32]; absent rows and columns are zero.

    `out` is rounded up to a multiple of 16, since an mma takes two panels, `in` to a multiple of 64.
    """
    *lead, out, columns = weight.shape
    padding = [(0, 0)] * len(lead) + [(0, -out % (2 * ROWS)), (0, -columns % COLUMNS)]
    padded = np.pad(weight, padding)
    grid = padded.reshape(*lead, -1, ROWS, count(columns), 2, GROUP)
    return np.ascontiguousarray(np.moveaxis(grid, -4, -2))


def int4_panels(weight: Quantised) -> np.ndarray:
    """Int4 [..., out, in] -> uint8 [..., out / 8, panels, 288]; `out` is a multiple of 8, `in` of 32."""
    *lead, out, words = weight.packed.shape
    panels = count(words * 8)
    packed = weight.packed.reshape(-1, out, words)
    scale = weight.scale.view(np.uint16).reshape(-1, out, words * 8 // GROUP)
    made = np.empty((len(packed), out // ROWS, panels, INT4_BYTES), np.uint8)
    for i in range(len(packed)):  # one expert at a time: the temporaries stay in the processor's caches
        made[i] = _matrix_panels(packed[i], scale[i], panels)
    return made.reshape(*lead, *made.shape[1:])


def _matrix_panels(packed: np.ndarray, scale: np.ndarray, panels: int) -> np.ndarray:
    out, words = packed.shape
    nibbles = np.pad(_even_then_odd(packed), ((0, 0), (0, panels * 8 - words)), constant_values=_EIGHT_ZEROS)
    scales = np.pad(scale, ((0, 0), (0, panels * 2 - scale.shape[1])))
    words_of_lanes = nibbles.reshape(out // ROWS, ROWS, panels, 2, 4).transpose(0, 2, 1, 4, 3)  # row g, lane t, group j
    scales_of_rows = scales.reshape(out // ROWS, ROWS, panels, 2).transpose(0, 2, 1, 3)
    shape = (out // ROWS, panels, -1)
    as_bytes = [np.ascontiguousarray(a).view(np.uint8).reshape(shape) for a in (words_of_lanes, scales_of_rows)]
    return np.concatenate(as_bytes, axis=-1)


def _even_then_odd(words: np.ndarray) -> np.ndarray:
    """Nibbles 0..7 of each word in the order 0 2 4 6 1 3 5 7: what int4x8_to_bf16 pairs are then neighbours in k."""
    return _squeeze(words & np.uint32(0x0F0F0F0F)) | _squeeze(
        words >> np.uint32(4) & np.uint32(0x0F0F0F0F)
    ) << np.uint32(16)


def _squeeze(low_nibbles: np.ndarray) -> np.ndarray:
    """The low nibble of each byte, side by side in the low 16 bits."""
    pairs = (low_nibbles | low_nibbles >> np.uint32(4)) & np.uint32(0x00FF00FF)
    return (pairs | pairs >> np.uint32(8)) & np.uint32(0xFFFF)


def side_by_side(panels: np.ndarray, axes: int) -> np.ndarray:
    """[..., out / 8, panels, ...] -> [..., out / 16, panels, 2, ...]: the two panels of an mma one behind the other.

    axes   the panel axis and those inside a panel
    """
    *lead, rows = panels.shape[:-axes]
    pairs = panels.reshape(*lead, rows // 2, 2, *panels.shape[-axes:])
    return np.ascontiguousarray(np.swapaxes(pairs, len(lead) + 1, len(lead) + 2))
