"""Weight panels: what the packer stores is what a tensor core multiplies, bit for bit, at every nibble and scale."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ddtree.runtime.weights.int4 import Int4, pack
from ddtree.templates import panels
from tests.emulator import Module, guarded

# The product of two panels with 64 rows of activations. With the rows of a unit matrix it is the weights themselves.
SOURCE = """
#include "ddtree/panel.cuh"
using Panel = ddtree::PanelOf<INT4>::type;
KERNEL(32) product(const u8* top, const u8* bottom, const bf16* x, float* y) {
    const int lane = threadIdx.x;
    u32 a[4][4];
    Panel::operands(top, bottom, lane, a);
    ddtree::Columns columns;
    columns.tiles = 8;
    for (int n = 0; n < 8; ++n) columns.at[n] = (8 * n + lane / 4) * 64 + lane % 4 * 8;
    float sum[8][4] = {};
    ddtree::Multiplier<false> multiplier;
    multiplier.start(x, 64, 0, 1, columns);
    multiplier.multiply<false>(sum, a, 0);
    for (int n = 0; n < 8; ++n)
        for (int i = 0; i < 4; ++i)
            y[(lane / 4 + i / 2 * 8) * 64 + 8 * n + lane % 4 * 2 + i % 2] = sum[n][i];
}
"""


def weights_of(top: np.ndarray, bottom: np.ndarray, *, int4: bool) -> np.ndarray:
    """float32 [16, 64]: the weights of two panels, as an mma sees them."""
    module = Module(SOURCE.replace("INT4", "true" if int4 else "false"), ["product"])
    unit = np.eye(64, dtype=ml_dtypes.bfloat16).view(np.uint16)
    y = guarded(np.full((16, 64), np.nan, np.float32))
    module.launch("product", (1,), (32,), [guarded(top), guarded(bottom), guarded(unit), y])
    return y.copy()


def scales() -> np.ndarray:
    """bf16 [16, 2]: ordinary ones, zero, negative, the smallest normal and subnormal, and the largest a loader admits."""
    bits = [
        0x3C00,
        0x3F80,
        0x3FB5,
        0x0000,
        0x8000,
        0xBD4D,
        0x0080,
        0x0001,
        0x007F,
        0x7DFF,
        0xFDFF,
        0x3EAB,
        0x4049,
        0x0100,
    ]
    return np.resize(np.array(bits, np.uint16), (16, 2)).view(ml_dtypes.bfloat16)


@pytest.mark.parametrize("shift", range(16))
def test_int4_products_are_rounded_once(shift: int) -> None:
    """Every nibble, -8 included, meets every scale at some column."""
    q = (np.arange(16)[:, None] * 3 + np.arange(64) + shift) % 16 - 8
    weight = Int4(pack(q), np.roll(scales(), shift, axis=0), 32)
    made = panels.int4_panels(weight)
    assert made.shape == (2, 1, 288)
    np.testing.assert_array_equal(weights_of(made[0, 0], made[1, 0], int4=True), weight.dequantise())


def test_bf16_weights_pass_unchanged() -> None:
    weight = np.random.default_rng(0).standard_normal((16, 64)).astype(ml_dtypes.bfloat16)
    made = panels.bf16_panels(weight)
    assert made.shape == (2, 1, 2, 8, 32)
    np.testing.assert_array_equal(weights_of(made[0, 0], made[1, 0], int4=False), weight.astype(np.float32))


@pytest.mark.parametrize("columns", [32, 64, 96, 256])
def test_stacks_and_half_panels(columns: int) -> None:
    """Every panel of every matrix stands at its place; columns past the end weigh nothing."""
    rng = np.random.default_rng(columns)
    q = rng.integers(-8, 8, (3, 32, columns))
    weight = Int4(pack(q), rng.uniform(1, 2, (3, 32, columns // 32)).astype(ml_dtypes.bfloat16), 32)
    dense = np.pad(weight.dequantise(), [(0, 0), (0, 0), (0, -columns % 64)])
    made, plain = panels.int4_panels(weight), panels.bf16_panels(weight.dequantise(ml_dtypes.bfloat16))
    for matrix, pair, panel in np.ndindex(3, 2, panels.count(columns)):
        want = dense[matrix, 16 * pair : 16 * pair + 16, 64 * panel : 64 * panel + 64]
        for stored, int4 in ((made, True), (plain, False)):
            top, bottom = stored[matrix, 2 * pair : 2 * pair + 2, panel]
            got = weights_of(
                np.ascontiguousarray(top).view(np.uint8), np.ascontiguousarray(bottom).view(np.uint8), int4=int4
            )
            np.testing.assert_array_equal(got, want)


def test_rows_are_padded_to_whole_tiles() -> None:
    made = panels.bf16_panels(np.ones((20, 64), ml_dtypes.bfloat16))
    assert made.shape == (4, 1, 2, 8, 32) and made.astype(np.float32).sum() == 20 * 64
