"""ddtree-compile compiles what the GPU runtime launches: every row capacity, and the kernels between the steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import Builder, Limits, build_step, steps_of
from ddtree.graph.model import load
from ddtree.runtime.launches import launches
from ddtree.templates.program import distinct, program, with_buckets
from ddtree.templates.target import TARGETS

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.parametrize("model", ["kimi_tiny", "kimi_k26"])
def test_no_kernel_is_left_for_the_first_start(model: str) -> None:
    loaded = load(MODELS / f"{model}.yaml")
    buckets = needed_buckets(Limits.of(loaded))
    graphs = [build_step(loaded, step) for step in steps_of(loaded)]
    verify = [build_step(loaded, "verify", 0, Builder(loaded, rows)) for rows in buckets]
    launched = [g for g in graphs if g.name != "verify"] + verify
    for target in TARGETS.values():
        compiled = program(with_buckets(distinct(graphs), buckets), target, {})
        for graph in launched:
            for launch in launches(graph, target, {}):
                kernel = compiled[launch.kernel.name]
                assert kernel.source == launch.kernel.source and kernel.tile.smem >= launch.kernel.tile.smem
