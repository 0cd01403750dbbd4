"""The memory plan: nothing overlaps, and little is wasted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from ddtree.graph.build import build_step
from ddtree.graph.passes.memory import ALIGNMENT, lifetimes, plan_memory
from ddtree.graph.passes.verify import verify
from ddtree.graph.step_graph import StepGraph, StepName
from tests.graph.graphs import STEPS, model, random_graphs


def bytes_alive(graph: StepGraph) -> list[int]:
    """Aligned bytes of the tensors that must exist while each op runs; no plan can do with less than the most."""
    tensors, spans = graph.tensors(), lifetimes(graph)
    size = {name: -(-tensors[name].nbytes // ALIGNMENT) * ALIGNMENT for name in spans}
    return [sum(size[n] for n, (first, last) in spans.items() if first <= i <= last) for i in range(len(graph.ops))]


def owners(graph: StepGraph) -> None:
    """Paint every op's moment byte by byte (in units of the alignment): each unit has one owner at most."""
    tensors, spans = graph.tensors(), lifetimes(graph)
    for i in range(len(graph.ops) + 1):
        taken: dict[int, str] = {}
        for name, (first, last) in spans.items():
            if first <= i <= last:
                start = graph.offsets[name]
                assert start % ALIGNMENT == 0 and start + tensors[name].nbytes <= graph.arena
                for unit in range(start // ALIGNMENT, -(-(start + tensors[name].nbytes) // ALIGNMENT)):
                    assert unit not in taken, f"{name} and {taken[unit]} share bytes at op {i}"
                    taken[unit] = name


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs())
def test_no_two_live_tensors_share_bytes(graph: StepGraph) -> None:
    verify(graph, "build")
    planned = plan_memory(graph)
    owners(planned)
    verify(planned, "memory")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs())
def test_random_graphs_fit_into_twice_what_is_alive(graph: StepGraph) -> None:
    assert plan_memory(graph).arena <= 2 * max(bytes_alive(graph))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["kimi_tiny", "kimi_k26"])
def test_a_models_arena_is_near_its_peak(name: str, step: StepName) -> None:
    graph = build_step(model(name), step)
    assert graph.arena <= 1.05 * max(bytes_alive(graph))


def test_a_tensor_lives_from_its_writer_to_its_last_reader_and_outputs_to_the_end() -> None:
    graph = build_step(model(), "verify")
    spans = lifetimes(graph)
    assert spans["logits"][1] == spans["features"][1] == len(graph.ops)
    writer = {t.name: i for i, op in enumerate(graph.ops) for t in op.writes()}
    reader = {t.name: i for i, op in enumerate(graph.ops) for t in op.reads()}
    inner = [n for n in writer if n not in {t.name for t in graph.outputs.values()}]
    assert all(spans[n] == (writer[n], reader.get(n, writer[n])) for n in inner) and len(inner) > 100
