"""The verifier finds every kind of fault that a pass could make."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from ddtree.graph.build import build_ranks, build_step
from ddtree.graph.op import Op
from ddtree.graph.ops import Linear, RmsNorm
from ddtree.graph.passes.memory import lifetimes, plan_memory
from ddtree.graph.passes.verify import BrokenGraphError, verify, verify_ranks
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Cache, DType, Tensor, Weight
from tests.graph.graphs import STEPS, model, undivided


def with_ops(graph: StepGraph, ops: Sequence[Op]) -> StepGraph:
    return dataclasses.replace(graph, ops=tuple(ops))


def everywhere(graph: StepGraph, name: str, **change: object) -> StepGraph:
    """The graph with one operand changed wherever it occurs, so that its readers agree with its writer."""

    def new(o: Tensor | Weight | Cache) -> Tensor | Weight | Cache:
        return dataclasses.replace(o, **change) if o.name == name else o  # type: ignore[arg-type]

    ops = [op.map_operands(new) for op in graph.ops]
    outputs = {key: new(t) for key, t in graph.outputs.items()}
    return dataclasses.replace(graph, ops=tuple(ops), outputs=outputs)  # type: ignore[arg-type]


def fault(graph: StepGraph, after: str = "a pass") -> str:
    with pytest.raises(BrokenGraphError) as caught:
        verify(graph, after)
    return str(caught.value)


@pytest.mark.parametrize("step", STEPS)
def test_the_shipped_graphs_pass(step: str) -> None:
    verify(undivided("kimi_tiny", step), "build")  # type: ignore[arg-type]


def test_a_tensor_that_is_read_before_it_is_written() -> None:
    graph = undivided("kimi_tiny", "verify")
    ops = list(graph.ops)
    ops[1], ops[2] = ops[2], ops[1]
    assert fault(with_ops(graph, ops)) == "after a pass: step verify: linear reads 'layers.0.h' before it is written"


def test_every_op_whose_result_is_used_is_missed() -> None:
    graph = undivided("kimi_tiny", "verify")
    for i, op in enumerate(graph.ops):
        if op.writes() and not {t.name for t in op.writes()} <= {"kept", "done"}:
            fault(with_ops(graph, [*graph.ops[:i], *graph.ops[i + 1 :]]))


def test_a_tensor_that_is_written_twice() -> None:
    graph = undivided("kimi_tiny", "verify")
    doubled = [*graph.ops[:2], graph.ops[1], *graph.ops[2:]]
    assert fault(with_ops(graph, doubled)) == "after a pass: step verify: rms_norm writes 'layers.0.h' twice"


def test_an_input_that_is_written() -> None:
    graph = undivided("kimi_tiny", "verify")
    fault(dataclasses.replace(graph, inputs={**graph.inputs, "x": graph.ops[0].writes()[0]}))


def test_a_name_that_means_two_things() -> None:
    graph = undivided("kimi_tiny", "verify")
    i, linear = next((i, op) for i, op in enumerate(graph.ops) if isinstance(op, Linear))
    other = dataclasses.replace(linear, x=dataclasses.replace(linear.x, domain="sequences"))
    assert fault(with_ops(graph, [*graph.ops[:i], other, *graph.ops[i + 1 :]])).endswith(
        "'layers.0.h' means two different things"
    )


def test_an_output_that_nobody_writes() -> None:
    graph = undivided("kimi_tiny", "verify")
    lost = dataclasses.replace(graph.outputs["logits"], name="nowhere")
    assert fault(dataclasses.replace(graph, outputs={**graph.outputs, "logits": lost})).endswith(
        "output 'logits' is not written"
    )


def _wider(t: Tensor) -> dict[str, object]:
    return {"shape": (*t.shape[:-1], t.shape[-1] + 1)}


def _other_type(t: Tensor) -> dict[str, object]:
    return {"dtype": DType.INT64 if t.dtype is not DType.INT64 else DType.BF16}


@pytest.mark.parametrize("change", [_wider, _other_type])
@pytest.mark.parametrize("step", STEPS)
def test_a_wrong_shape_or_type_of_any_tensor(step: str, change: Callable[[Tensor], dict[str, object]]) -> None:
    graph = undivided("kimi_tiny", step)  # type: ignore[arg-type]
    for op in graph.ops[:40] + graph.ops[-12:]:
        for t in op.writes():
            fault(everywhere(graph, t.name, **change(t)))


def test_a_weight_of_another_shape() -> None:
    graph = undivided("kimi_tiny", "verify")
    norm = next(op for op in graph.ops if isinstance(op, RmsNorm))
    assert "does not fit rows of" in fault(everywhere(graph, norm.weight.name, full=(255,)))


def _planned() -> StepGraph:
    return build_step(model(), "verify")


def test_tensors_that_share_bytes_while_both_live() -> None:
    graph = _planned()
    spans = lifetimes(graph)
    pairs = 0
    for a, (first, last) in spans.items():
        for b, (other, end) in spans.items():
            if a < b and first <= end and other <= last:
                moved = dataclasses.replace(graph, offsets={**graph.offsets, a: graph.offsets[b]})
                verdict = fault(moved, "memory")
                assert "share bytes" in verdict or "no aligned place" in verdict
                pairs += 1
    assert pairs > 100


@pytest.mark.parametrize("offset", [-256, 1, 128, 1 << 40])
def test_a_tensor_outside_the_arena_or_between_its_units(offset: int) -> None:
    graph = _planned()
    moved = dataclasses.replace(graph, offsets={**graph.offsets, "logits": offset})
    assert fault(moved, "memory") == "after memory: step verify: 'logits' has no aligned place in the arena"


def test_a_tensor_without_a_place() -> None:
    graph = _planned()
    rest = {name: at for name, at in graph.offsets.items() if name != "logits"}
    assert "'logits' has no aligned place" in fault(dataclasses.replace(graph, offsets=rest), "memory")


def _ranks() -> list[StepGraph]:
    return build_ranks(model("kimi_tiny", 2), "verify")


def _replan(graph: StepGraph, change: Callable[[list[Op]], list[Op]]) -> StepGraph:
    return plan_memory(with_ops(graph, change(list(graph.ops))))


@pytest.mark.parametrize(
    "change",
    [
        lambda ops: ops[:-1],
        lambda ops: [*ops[:-2], ops[-1], ops[-2]],
        lambda ops: [dataclasses.replace(op, origin="elsewhere:1:1") if op is ops[5] else op for op in ops],
    ],
    ids=["an op fewer", "another order", "another node"],
)
def test_a_rank_that_runs_other_ops(change: Callable[[list[Op]], list[Op]]) -> None:
    first, second = _ranks()
    with pytest.raises(BrokenGraphError, match="ranks 0 and 1 run different ops"):
        verify_ranks([first, _replan(second, change)])


def test_a_rank_whose_tensors_lie_elsewhere() -> None:
    first, second = _ranks()
    verify_ranks([first, second])
    with pytest.raises(BrokenGraphError):
        verify_ranks([first, dataclasses.replace(second, arena=second.arena + 256)])
    with pytest.raises(BrokenGraphError):
        verify_ranks([first, everywhere(second, "layers.0.q", shape=(64, 2, 64))])
