"""Step graphs for tests of the passes: the shipped models', and random ones of small ops."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

from ddtree.graph.build import Builder
from ddtree.graph.model import Model, load
from ddtree.graph.op import Op
from ddtree.graph.ops import Add, ConcatTaps
from ddtree.graph.step_graph import StepGraph, StepName
from ddtree.graph.tensor import Tensor
from tests.graph.spec import MODELS

STEPS: tuple[StepName, ...] = ("prefill", "draft", "verify", "commit")


@cache
def model(name: str = "kimi_tiny", ranks: int | None = None, *, draft: bool = True) -> Model:
    """A shipped model."""
    return load(MODELS / f"{name}.yaml", ranks=ranks, draft=draft)


@cache
def undivided(name: str, step: StepName) -> StepGraph:
    """A step of a shipped model before all passes."""
    return Builder(model(name)).build(step)


@st.composite
def random_graphs(draw: st.DrawFn) -> StepGraph:
    """A step whose ops each read one to three earlier tensors and write one; some tensors are outputs."""
    start = Tensor("in", (draw(st.integers(1, 64)), draw(st.integers(1, 300))), domain="rows")
    rows, known, ops = start.shape[0], [start], list[Op]()
    for i in range(draw(st.integers(1, 25))):
        pair = draw(st.booleans())
        picked = [known[draw(st.integers(0, len(known) - 1))] for _ in range(1 if pair else draw(st.integers(1, 3)))]
        if pair:
            ops.append(Add(a=picked[0], b=picked[0], y=Tensor(f"t{i}", picked[0].shape, domain="rows")))
        else:
            wide = Tensor(f"t{i}", (rows, sum(t.width for t in picked)), domain="rows")
            ops.append(ConcatTaps(taps=tuple(picked), y=wide))
        known.append(ops[-1].writes()[0])
    kept = draw(st.lists(st.sampled_from(known[1:]), unique=True, max_size=3))
    return StepGraph("verify", tuple(ops), {"in": start}, {t.name: t for t in kept}, rows, tree=True, decode=True)
