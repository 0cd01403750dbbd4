"""What a step costs, against arithmetic on the published sizes of the large model (per rank of eight)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ddtree.graph.build import build_ranks
from ddtree.graph.cost import Load
from ddtree.graph.op import Op
from ddtree.graph.ops import AllReduceAddRmsNorm, Embed, ExpertMlp, Linear, Route, Swiglu
from ddtree.graph.ops.expert_mlp import expected_experts
from ddtree.graph.step_graph import StepGraph
from tests.graph.graphs import model, undivided

MB, GB = 1e6, 1e9
RANKS, EXPERTS, TOP_K, HIDDEN, WIDTH, LAYERS = 8, 384, 8, 7168, 2048, 61


@pytest.fixture(scope="module")
def rank() -> StepGraph:
    return build_ranks(model("kimi_k26"), "verify")[0]


def of_layer(graph: StepGraph, layer: int, part: str) -> float:
    return sum(w.nbytes for name, w in graph.weights().items() if f"layers.{layer}.{part}" in name) / MB


def test_weights_of_a_layer(rank: StepGraph) -> None:
    replicated = 2 * HIDDEN * (1536 + 576)
    divided = 2 * (64 * 192 * 1536 + 64 * 256 * 512 + HIDDEN * 64 * 128) / RANKS
    assert of_layer(rank, 5, "self_attn") == pytest.approx((replicated + divided) / MB, abs=0.01)
    assert (replicated / MB, divided / MB) == pytest.approx((30.3, 21.5), abs=0.05)
    assert of_layer(rank, 5, "mlp.shared_experts") == pytest.approx(11.0, abs=0.02)
    assert of_layer(rank, 5, "mlp.gate.") == pytest.approx(5.5, abs=0.01)
    assert of_layer(rank, 0, "mlp") == pytest.approx(99, abs=0.2)
    assert rank.weights()["lm_head.weight"].nbytes / MB == pytest.approx(294, abs=0.5)


def test_an_expert_is_int4_with_a_scale_per_group(rank: StepGraph) -> None:
    moe = next(op for op in rank.ops if isinstance(op, ExpertMlp))
    expert = sum(w.nbytes for w in (moe.gate, moe.up, moe.down)) / EXPERTS
    assert expert == 3 * HIDDEN * WIDTH * (0.5 + 2 / 32) / RANKS
    assert expert / MB == pytest.approx(3.10, abs=0.005)
    one, two = (moe.cost(Load(rows=n)).weights for n in (1, 2))
    shared = 3 * 2 * HIDDEN * WIDTH // RANKS
    assert one - shared == pytest.approx(TOP_K * expert)
    assert two - one == pytest.approx(TOP_K * (1 - TOP_K / EXPERTS) * expert)


@pytest.mark.parametrize(("rows", "distinct"), [(1, 8), (8, 59.5), (16, 109.8), (32, 188.2), (64, 284.2), (128, 358.1)])
def test_distinct_experts(rows: int, distinct: float) -> None:
    assert expected_experts(EXPERTS, TOP_K, rows) == pytest.approx(distinct, abs=0.05)


@pytest.mark.parametrize(("rows", "bytes_"), [(1, 6.3), (8, 15.9), (16, 25.2), (32, 39.8), (64, 57.6)])
def test_bytes_of_a_step_at_4k_context(rank: StepGraph, rows: int, bytes_: float) -> None:
    keys = 4096 * sum(c.row_bytes for c in rank.caches().values())
    assert (rank.cost(Load(rows=rows)).weights + keys) / GB == pytest.approx(bytes_, rel=0.005)
    assert rank.cost(Load(rows=rows, context=4096)).bytes / GB == pytest.approx(bytes_, rel=0.05)  # activations too


def test_weights_that_every_step_reads(rank: StepGraph) -> None:
    experts = 60 * TOP_K * 3 * HIDDEN * WIDTH * 0.5625 / RANKS
    assert (rank.cost(Load(rows=1)).weights - experts) / GB == pytest.approx(4.54, abs=0.01)


def test_a_cached_position(rank: StepGraph) -> None:
    assert {c.row_bytes for c in rank.caches().values()} == {1152} and len(rank.caches()) == LAYERS
    near, far = (rank.cost(Load(context=n)) for n in (0, 32768))
    assert far.read - near.read == 32768 * 1152 * LAYERS == pytest.approx(2.3 * GB, rel=0.01)


def test_weights_on_a_rank(rank: StepGraph) -> None:
    total = sum(w.nbytes for w in rank.weights().values())
    embedding = 2 * 163840 * HIDDEN  # replicated, where the published count divides it
    assert total - embedding * (RANKS - 1) / RANKS == pytest.approx(76.2 * GB, abs=0.05 * GB)


def test_sums_over_ranks(rank: StepGraph) -> None:
    """A row of every rank and of the residual are read, the sum and its norm written."""
    sums = [op for op in rank.ops if isinstance(op, AllReduceAddRmsNorm)]
    costs = {(c.read, c.write) for c in (op.cost(Load(rows=1)) for op in sums)}
    assert len(sums) == 122 and costs == {((RANKS + 1) * 14336, 2 * 14336)}


def test_operations_of_a_token() -> None:
    graph = undivided("kimi_k26", "verify")
    linear = sum(2 * op.weight.full[0] * op.weight.full[1] for op in graph.ops if isinstance(op, Linear | Route))
    experts = 60 * 6 * HIDDEN * WIDTH * (TOP_K + 1)
    absorbed = LAYERS * 2 * 64 * 256 * 512
    products = linear + experts + absorbed
    assert graph.cost(Load(rows=1)).flops == pytest.approx(products, rel=0.01)


def test_with_enough_rows_every_parameter_is_read_once() -> None:
    graph = undivided("kimi_tiny", "verify")
    embedding = next(op for op in graph.ops if isinstance(op, Embed))
    read = graph.cost(Load(rows=1000)).weights - embedding.cost(Load(rows=1000)).weights
    assert read == sum(w.nbytes for w in graph.weights().values()) - embedding.weight.nbytes


def test_more_rows_never_cost_less() -> None:
    graph = undivided("kimi_tiny", "verify")
    for op in graph.ops:
        costs = [op.cost(Load(rows=n, context=100)) for n in (1, 2, 8, 64)]
        for few, many in pairwise(costs):
            assert few.bytes <= many.bytes and few.flops <= many.flops, op.name()


def test_costs_add_up() -> None:
    graph, load = undivided("kimi_tiny", "prefill"), Load(rows=100, context=50)

    def total(kind: str) -> int:
        return sum(getattr(op.cost(load), kind) for op in graph.ops)

    whole = graph.cost(load)
    assert (whole.weights, whole.read, whole.write, whole.flops) == tuple(
        map(total, ("weights", "read", "write", "flops"))
    )
    assert whole.bytes == whole.weights + whole.read + whole.write


def test_an_elementwise_op_moves_what_it_touches() -> None:
    op: Op = next(op for op in undivided("kimi_k26", "verify").ops if isinstance(op, Swiglu))
    cost = op.cost(Load(rows=3))
    assert (cost.read, cost.write, cost.weights) == (3 * 2 * 2 * 18432, 3 * 2 * 18432, 0)
