"""Tensor parallelism: the ranks' parts make the whole, and sums meet where parts are partial."""

from __future__ import annotations

import numpy as np
import pytest

from ddtree.graph.build import build_ranks
from ddtree.graph.model import Model
from ddtree.graph.ops import AllGather, AllReduce, AllReduceAddRmsNorm, ExpertMlp, Linear
from ddtree.graph.passes.shard import shard
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Shard, Weight
from ddtree.runtime.decoder import Sampling
from ddtree.runtime.load import cpu_decoder, folders
from tests.graph.graphs import model, undivided
from tests.runtime.decoders import GOLDENS, decode

# Which axis of which parameter the eight ranks of the large model divide; the others are on every rank.
DIVIDED = {
    "self_attn.q_b_proj.weight": 0, "self_attn.kv_b_proj.weight": 0, "self_attn.o_proj.weight": 1,
    "mlp.gate_proj.weight": 0, "mlp.up_proj.weight": 0, "mlp.down_proj.weight": 1,
    "mlp.experts.{expert}.gate_proj.weight": 0, "mlp.experts.{expert}.up_proj.weight": 0,
    "mlp.experts.{expert}.down_proj.weight": 1, "mlp.shared_experts.gate_proj.weight": 0,
    "mlp.shared_experts.up_proj.weight": 0, "mlp.shared_experts.down_proj.weight": 1, "lm_head.weight": 0,
}  # fmt: skip
WHOLE = {
    "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_a_proj.weight", "self_attn.q_a_layernorm.weight",
    "self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_layernorm.weight", "mlp.gate.weight",
    "mlp.gate.e_score_correction_bias", "model.norm.weight", "model.embed_tokens.weight",
}  # fmt: skip


def ranks(m: Model) -> list[StepGraph]:
    return build_ranks(m, "verify")


def test_each_parameter_of_the_large_model_is_divided_as_published() -> None:
    for source, weight in ranks(model("kimi_k26"))[3].weights().items():
        name = source.partition("layers.")[2].partition(".")[2] or source
        assert (name in DIVIDED) != (name in WHOLE), name
        assert weight.split == DIVIDED.get(name)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_parts_tile_the_whole(size: int) -> None:
    whole_graph = undivided("kimi_k26", "verify")
    by_rank = [shard(whole_graph, Shard(size, rank)).weights() for rank in range(size)]
    for name, whole in whole_graph.weights().items():
        parts: list[Weight] = [weights[name] for weights in by_rank]
        if whole.split is None:
            assert all(p.shape == whole.shape and p.nbytes == whole.nbytes for p in parts)
            continue
        axis = whole.split
        taken = np.concatenate([np.arange(whole.full[axis])[p.shard.slice(whole.full[axis])] for p in parts])
        assert (taken == np.arange(whole.full[axis])).all()
        assert sum(p.nbytes for p in parts) == whole.nbytes
        stacked = int(whole.count > 0)
        assert all(p.shape[axis + stacked] * size == whole.shape[axis + stacked] for p in parts)


def test_a_sum_over_ranks_follows_every_partial_result_and_nothing_else() -> None:
    graph = ranks(model("kimi_k26"))[0]
    reductions = AllReduce | AllReduceAddRmsNorm
    assert sum(isinstance(op, reductions) for op in graph.ops) == 2 * 61
    gathers = [op for op in graph.ops if isinstance(op, AllGather)]
    assert [op.x.name for op in gathers] == ["logits"] and graph.outputs["logits"].shape == (64, 163840)
    for op, after in zip(graph.ops, graph.ops[1:], strict=False):
        partial = isinstance(op, Linear | ExpertMlp) and op.is_partial()
        assert partial == (isinstance(after, reductions) and after.x == op.writes()[0])


def test_one_rank_needs_no_collective() -> None:
    graph = undivided("kimi_tiny", "verify")
    assert shard(graph, Shard(1, 0)) is graph


@pytest.mark.parametrize(("size", "draft"), [(2, True), (4, False)])
def test_ranks_together_decode_what_one_decodes(size: int, draft: bool) -> None:
    m = model("kimi_tiny", size, draft=draft)
    golden = GOLDENS[4]
    made, lengths = decode(cpu_decoder(m, folders(m, None, None)), golden["prompt_ids"], 16, Sampling())
    assert made == golden["greedy_ids"][:16]
    if draft:
        assert lengths == golden["accept"]["tree15"]["lengths"][: len(lengths)]
