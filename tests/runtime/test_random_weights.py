"""Random weights: every kernel's layout from templates, and the kernel that fills them, run on the CPU."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from ddtree.graph.build import build_step
from ddtree.graph.model import load
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import DType, Weight
from ddtree.runtime.launches import launches, pack_weights
from ddtree.runtime.random_weights import RandomArray, random_arrays
from ddtree.runtime.weights.int4 import Int4
from ddtree.templates.measure import random_fill_tile, read_part, stream_read_tile
from ddtree.templates.render import render_tile
from ddtree.templates.target import DEFAULT_TARGET, target
from tests.emulator import guarded
from tests.steps.emulated import run_tile

TINY = Path(__file__).parents[2] / "models" / "kimi_tiny.yaml"


@pytest.fixture(scope="module")
def graph() -> StepGraph:
    return build_step(load(TINY), "verify")


@pytest.fixture(scope="module")
def arrays(graph: StepGraph) -> dict[tuple[str, str, str], RandomArray]:
    return {(a.place.name, a.place.op, a.place.part): a for a in random_arrays([graph])}


def test_every_weight_of_a_launch_has_an_array(
    graph: StepGraph, arrays: dict[tuple[str, str, str], RandomArray]
) -> None:
    places = {p for launch in launches(graph, target(DEFAULT_TARGET), {}) for p in launch.places if p.kind == "weight"}
    assert places == {a.place for a in arrays.values()}


def test_arrays_are_as_large_as_packed_weights(
    graph: StepGraph, arrays: dict[tuple[str, str, str], RandomArray]
) -> None:
    def zeros(w: Weight) -> np.ndarray | Int4:
        if w.dtype is not DType.INT4:
            return np.zeros(w.shape, w.dtype.numpy)
        scale = np.zeros((*w.shape[:-1], w.shape[-1] // w.group), DType.BF16.numpy)
        return Int4(np.zeros((*w.shape[:-1], w.shape[-1] // 8), np.uint32), scale, w.group)

    packed = pack_weights([graph], {name: zeros(w) for name, w in graph.weights().items()})
    assert {p: a.nbytes for p, a in packed.items()} == {a.place: a.nbytes for a in arrays.values()}


def _draw(array: RandomArray, random: np.ndarray) -> np.ndarray:
    return array.base | (random[: array.base.size] & array.mask)


def test_values_are_finite_and_of_the_right_size(arrays: dict[tuple[str, str, str], RandomArray]) -> None:
    random = np.random.default_rng(0).integers(0, 2**32, 1 << 22, np.uint32)
    for (name, op, _), array in arrays.items():
        if op.startswith("expert_mlp.") and "shared" not in name:
            continue  # codes and scales, mixed
        words = _draw(array, random)
        values = (
            words.view(np.float32)
            if name.endswith("bias")
            else (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        )
        assert np.isfinite(values).all(), name
        assert 1e-3 < np.abs(values[values != 0]).mean() < 2.1, name


@pytest.mark.parametrize(("words", "period"), [(1, 1), (7, 3), (4096, 36), (5001, 1000)])
def test_fill_kernel_repeats_the_template(words: int, period: int) -> None:
    rng = np.random.default_rng(words)
    base, mask = (rng.integers(0, 2**32, period, np.uint32) for _ in range(2))
    base &= ~mask
    out = guarded(np.zeros(words, np.uint32))
    fill = guarded(np.frombuffer(struct.pack("3Q", words, period, 77), np.uint8))
    tile = random_fill_tile(target(DEFAULT_TARGET))
    run_tile(tile, render_tile(tile), [fill, guarded(base), guarded(mask), out])
    at = np.arange(words) % period
    assert (out & ~mask[at] == base[at]).all()
    random = out & mask[at]
    again = guarded(np.zeros(words, np.uint32))
    run_tile(tile, render_tile(tile), [fill, guarded(base), guarded(mask), again])
    assert (again == out).all()
    if words > 1000:  # half of the free bits are set, and two periods differ
        ones = np.unpackbits(random.view(np.uint8)).sum() / np.unpackbits(mask[at].view(np.uint8)).sum()
        assert abs(ones - 0.5) < 0.02
        assert (out[:period] != out[period : 2 * period]).any()


@pytest.mark.parametrize("vectors", [1, 255, 6145])
def test_read_kernel_stays_inside_its_buffer(vectors: int) -> None:
    data = guarded(np.ones((vectors, 4), np.uint32))  # guard pages around it end a stray read
    where = target(DEFAULT_TARGET)
    tile = stream_read_tile(where, data.nbytes)
    assert tile.grid[0] * read_part(where, data.nbytes) >= vectors
    read = guarded(np.frombuffer(struct.pack("2Q", vectors, read_part(where, data.nbytes)), np.uint8))
    never = guarded(np.zeros(1, np.uint32))
    run_tile(tile, render_tile(tile), [read, data, never])
    assert never[0] == 0
