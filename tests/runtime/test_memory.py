"""The memory plan against what the runtime allocates, and the limits that it chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree.errors import UsageError
from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import Builder, Limits, build_step, steps_of
from ddtree.graph.model import Model, load
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.step_graph import StepGraph
from ddtree.runtime.kv import PAGE
from ddtree.runtime.launches import launches, pack_weights
from ddtree.runtime.load import folders, kv_pages, read_weights
from ddtree.runtime.memory import CARDS, fit, make_plan, most_sequences, require_fit, with_limits
from ddtree.runtime.numpy_executor import make_caches
from ddtree.templates.program import tuning_of
from ddtree.templates.target import DEFAULT_TARGET, target

MODELS = Path(__file__).parents[2] / "models"
TARGET = target(DEFAULT_TARGET)


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load(MODELS / "kimi_tiny.yaml", ["sequences=3", "tree.budget=15"])


@pytest.fixture(scope="module")
def graphs(tiny: Model) -> list[StepGraph]:
    """Every step as the runtime builds it, verify at each row capacity."""
    builder = Builder(tiny)
    made = [build_step(tiny, step, 0, builder) for step in steps_of(tiny) if step != "verify"]
    return made + [build_step(tiny, "verify", 0, Builder(tiny, n)) for n in needed_buckets(Limits.of(tiny))]


def test_weights_are_those_that_are_uploaded(tiny: Model, graphs: list[StepGraph]) -> None:
    plan = make_plan(tiny, TARGET)
    weights = {n: w for g in graphs for n, w in g.weights().items()}
    packed = pack_weights(graphs, read_weights(tiny, folders(tiny, None, None), weights))
    mine = sum(a.nbytes for place, a in packed.items() if not place.name.startswith("draft."))
    rest = sum(a.nbytes for place, a in packed.items() if place.name.startswith("draft."))
    # norms that several kinds of op read as they are exist once in the plan
    assert 0 <= mine - plan.uses["weights"] < 0.01 * mine and 0 <= rest - plan.uses["drafter"] < 0.01 * rest


def test_caches_are_those_of_the_executor(tiny: Model, graphs: list[StepGraph]) -> None:
    plan = make_plan(tiny, TARGET)
    layers = {n: c for g in graphs for n, c in g.caches().items()}
    caches = make_caches(layers, kv_pages(tiny), 3)
    halves = {n: (c.rows.nbytes // 2, c.scratch.nbytes // 2) for n, c in caches.items()}  # fp32 stands for bf16
    assert plan.uses["kv pages"] == sum(halves[n][0] for n, c in layers.items() if c.window is None)
    assert plan.uses["drafter windows"] == sum(halves[n][0] for n, c in layers.items() if c.window is not None) > 0
    assert plan.uses["tree scratch"] == sum(scratch for _, scratch in halves.values())


def test_arenas_and_workspaces_are_those_of_the_launches(tiny: Model, graphs: list[StepGraph]) -> None:
    plan = make_plan(tiny, TARGET)
    spaces = [
        {place: w.nbytes for launch in launches(g, TARGET, tuning_of(tiny, TARGET.name)) for place, w in launch.workspaces.items()}
        for g in graphs
    ]  # fmt: skip
    assert plan.uses["workspaces"] == sum(sum(step.values()) for step in spaces) > 0
    verify = max(g.arena for g in graphs if g.name == "verify")
    others = sum(g.arena for g in graphs if g.name != "verify")
    inputs = plan.uses["arenas"] - verify - others
    assert 0 < inputs < 0.1 * plan.uses["arenas"]


def test_the_longest_context_of_given_sequences(tiny: Model) -> None:
    small = make_plan(with_limits(tiny, 1000, 4), TARGET).total
    made, plan = fit(tiny, small, TARGET, sequences=4)
    assert plan.total <= small and (plan.sequences, made.target.spec.decode.sequences) == (4, 4)
    assert 1000 <= plan.context < 1000 + PAGE and made.target.spec.context == plan.context
    assert make_plan(with_limits(tiny, plan.context + PAGE, 4), TARGET).total > small
    assert (plan.context + MAX_ROWS) % PAGE == 0  # a page that is paid for is used


def test_the_most_sequences_of_a_given_context(tiny: Model) -> None:
    small = make_plan(with_limits(tiny, 2048, 5), TARGET).total
    _, plan = fit(tiny, small, TARGET, context=2048)
    assert (plan.sequences, plan.context) == (5, 2048)
    assert fit(tiny, 1 << 40, TARGET, context=2048)[1].sequences == most_sequences(tiny) == 8


def test_what_is_not_given_follows_the_yaml(tiny: Model) -> None:
    everything = fit(tiny, 1 << 40, TARGET)[1]
    assert (everything.sequences, everything.context) == (3, tiny.target.spec.context)
    two = make_plan(with_limits(tiny, tiny.target.spec.context, 2), TARGET).total
    fewer = fit(tiny, two, TARGET)[1]
    assert (fewer.sequences, fewer.context) == (2, tiny.target.spec.context)


def test_what_cannot_fit_is_refused_with_numbers(tiny: Model) -> None:
    plan = make_plan(tiny, TARGET)
    with pytest.raises(
        UsageError, match=r"with 3 sequences of 4,096 positions needs 0?\.?\d+\.\d+ MB on each of 1 GPUs"
    ) as caught:
        require_fit(plan, plan.total - 1, "the GPU")
    assert "the GPU has" in str(caught.value) and "weights 17." in str(caught.value) and caught.value.exit_code == 2
    require_fit(plan, plan.total, "the GPU")
    with pytest.raises(UsageError, match="with 1 sequence of 64 positions needs"):
        fit(tiny, 10_000_000, TARGET)
    with pytest.raises(UsageError, match="with 8 sequences of 4,096 positions needs"):
        fit(tiny, plan.total, TARGET, context=4096, sequences=8)
    with pytest.raises(UsageError, match="a context of 4,097 positions exceeds the model's 4,096"):
        fit(tiny, plan.total, TARGET, context=4097)


def test_the_full_model_on_eight_cards() -> None:
    model = load(MODELS / "kimi_k26.yaml")
    card = CARDS["96 GB"]
    long = fit(model, card.capacity, card.target, context=262_144)[1]
    assert long.sequences == 1 and 79.6e9 < long.uses["weights"] + long.uses["drafter"] < 79.7e9
    wide = CARDS["141 GB"]
    many = fit(model, wide.capacity, wide.target)[1]
    assert many.sequences == 8 and 100_000 < many.context < 130_000 and 0.99 < many.total / wide.capacity <= 1
