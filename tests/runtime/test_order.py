"""Layouts as tables: every packer of the shipped models is learnt, and the kernel that follows a table is run on the CPU."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ddtree.graph.build import Builder, build_step, steps_of
from ddtree.graph.model import load
from ddtree.runtime.order import CONSTANT, Order, learn, orders
from ddtree.runtime.packed import ByShape, Use, uses_of
from ddtree.templates.loading import rearrange_tile
from ddtree.templates.render import render_tile
from ddtree.templates.target import DEFAULT_TARGET, target
from tests.emulator import guarded
from tests.steps.emulated import run_tile

MODELS = Path(__file__).parents[2] / "models"


def uses_of_model(name: str) -> list[Use]:
    """One use of every layout of a model that packs."""
    model = load(MODELS / f"{name}.yaml")
    builder = Builder(model)
    found = uses_of(build_step(model, step, 0, builder) for step in steps_of(model))
    return list({ByShape(use): use for of_weight in found.values() for use in of_weight if use.packs}.values())


@pytest.mark.parametrize("model", ["kimi_tiny", "kimi_k26"])
def test_every_layout_is_a_rearrangement(model: str) -> None:
    uses = uses_of_model(model)
    assert len(uses) > 10
    for use in uses:
        found, form = orders(use), use.form()
        assert found is not None, use.key
        sizes = form.block or form.unit
        assert {part: order.nbytes for part, order in found.items()} == dict(sizes), use.key
        for order in found.values():
            moved = order.table[order.table < CONSTANT]
            assert np.bincount(moved).max() == 1  # nothing is copied twice


def test_what_computes_is_no_rearrangement() -> None:
    def halves(raw: np.ndarray) -> dict[str, np.ndarray]:
        return {"": (raw.view(np.uint16) >> 1).view(np.uint8)}

    def back(raw: np.ndarray) -> dict[str, np.ndarray]:
        return {"": raw[::-1].copy()}

    assert learn(halves, 64, 16) is None and learn(halves, 64, 4) is None
    assert learn(back, 64, 16) is None and learn(back, 64, 4) is not None  # it moves bytes, not elements of 16 bits
    swapped = learn(lambda raw: {"": raw.view(np.uint16)[::-1].copy().view(np.uint8)}, 64, 16)
    assert swapped and swapped[""].table.tolist() == list(range(31, -1, -1))


@pytest.mark.parametrize("bits", [4, 16])
@pytest.mark.parametrize(("source", "words", "blocks"), [(4, 1, 1), (36, 8, 3), (512, 300, 5)])
def test_kernel_follows_the_table(bits: int, source: int, words: int, blocks: int) -> None:
    rng = np.random.default_rng(source + bits)
    table = rng.integers(0, source * 8 // bits, words * 32 // bits, np.uint32)
    fixed = rng.random(len(table)) < 0.1
    table[fixed] = CONSTANT + rng.integers(0, 1 << bits, int(fixed.sum()), np.uint32)
    order = Order(bits, table, source)
    raw = rng.integers(0, 256, blocks * source, np.uint8)
    out = guarded(np.zeros(blocks * words, np.uint32))
    tile = rearrange_tile(target(DEFAULT_TARGET), bits)
    what = guarded(np.frombuffer(struct.pack("3Q", len(out), words, source), np.uint8))
    run_tile(tile, render_tile(tile), [what, guarded(raw), guarded(table), out])
    assert out.view(np.uint8).tobytes() == order.apply(raw).tobytes()
