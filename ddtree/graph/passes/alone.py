"""One rank without its group, for measuring it alone: collectives are left out, and routing may be given from outside."""

from __future__ import annotations

from dataclasses import replace

from ddtree.graph.op import Op, Operand
from ddtree.graph.ops import AddRmsNorm, AllReduceAddRmsNorm, ExpertMlp
from ddtree.graph.passes.memory import plan_memory
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Tensor


def alone(graph: StepGraph) -> StepGraph:
    """The graph with each collective's input in place of its output: partial sums stand for sums, and the rank's part of the
    vocabulary for the whole. Every other op does what it does in its group."""
    stands: dict[str, Tensor] = {}

    def stand_in(o: Operand) -> Operand:
        return stands.get(o.name, o) if isinstance(o, Tensor) else o

    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, AllReduceAddRmsNorm):
            without = AddRmsNorm(a=op.a, b=op.x, weight=op.weight, sum=op.sum, y=op.y, eps=op.eps, origin=op.origin)
            ops.append(without.map_operands(stand_in))
        elif op.collective:
            (x,), (y,) = op.reads(), op.writes()
            stands[y.name] = stands.get(x.name, x)
        else:
            ops.append(op.map_operands(stand_in))
    outputs = {name: stands.get(t.name, t) for name, t in graph.outputs.items()}
    return plan_memory(replace(graph, ops=tuple(ops), outputs=outputs))


def given_routing(graph: StepGraph) -> StepGraph:
    """The graph whose experts are chosen by inputs instead of its routers. The routers still run and give the gates."""
    chosen: dict[str, Tensor] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, ExpertMlp):
            given = replace(op.ids, name=f"{op.ids.name}.given")
            chosen[given.name] = given
            op = replace(op, ids=given)
        ops.append(op)
    return plan_memory(replace(graph, ops=tuple(ops), inputs={**graph.inputs, **chosen}))
