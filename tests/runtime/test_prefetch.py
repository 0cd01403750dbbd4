"""Prefetches of later weights: which, how much, and that the kernel stays inside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ddtree.graph.build import build_step
from ddtree.graph.model import load
from ddtree.runtime.launches import Launch, launches
from ddtree.templates.prefetch import PIECE, prefetch_tile
from ddtree.templates.render import render_tile
from ddtree.templates.target import DEFAULT_TARGET, target
from tests.emulator import guarded
from tests.steps.emulated import run_tile

MODELS = Path(__file__).parents[2] / "models"


def plan(budget: int | None) -> list[Launch]:
    graph = build_step(load(MODELS / "kimi_k26.yaml", [], ranks=8), "verify")
    return launches(graph, target(DEFAULT_TARGET), {"mla_tree_attention": {"prefetch": budget}} if budget else {})


def test_a_prefetch_stands_before_each_named_op_and_changes_nothing_else() -> None:
    plain, ahead = plan(None), plan(32)
    assert [x.kernel.name for x in plain] == [x.kernel.name for x in ahead if x.kernel.tile.template != "prefetch"]
    assert sum(x.kernel.tile.template == "prefetch" for x in ahead) == 61
    at = next(i for i, x in enumerate(ahead) if x.kernel.tile.template == "prefetch")
    assert ahead[at + 1].kernel.op.name() == "mla_tree_attention"


@pytest.mark.parametrize("budget", [1, 16, 32])
def test_it_holds_the_next_weights_that_fit(budget: int) -> None:
    ahead = plan(budget)
    for i, launch in enumerate(ahead):
        if launch.kernel.tile.template != "prefetch":
            continue
        sizes = launch.kernel.tile.constants["sizes"]
        assert isinstance(sizes, tuple) and 0 < sum(sizes) <= budget << 20
        later = [p for x in ahead[i + 1 :] for p in x.places if p.kind == "weight"]
        assert set(launch.places) <= set(later)
        assert not any(".experts." in p.name for p in launch.places), "which experts is not known yet"


@pytest.mark.parametrize("sizes", [(16,), (PIECE, 48), (PIECE - 16, 3 * PIECE + 16, 32)])
def test_the_kernel_stays_inside_its_ranges(sizes: tuple[int, ...]) -> None:
    tile = prefetch_tile(sizes)
    run_tile(tile, render_tile(tile), [guarded(np.zeros(n, np.uint8)) for n in sizes])
