"""The op set: one file per op, one class per file, each with its shape rule, NumPy reference, cost and template name."""

from __future__ import annotations

from ddtree.graph.op import Op
from ddtree.graph.ops.accept import Accept
from ddtree.graph.ops.add import Add
from ddtree.graph.ops.add_rms_norm import AddRmsNorm
from ddtree.graph.ops.all_gather import AllGather
from ddtree.graph.ops.all_reduce import AllReduce
from ddtree.graph.ops.all_reduce_add_rms_norm import AllReduceAddRmsNorm
from ddtree.graph.ops.build_tree import BuildTree
from ddtree.graph.ops.cache_commit import CacheCommit
from ddtree.graph.ops.cache_write import CacheWrite
from ddtree.graph.ops.concat_taps import ConcatTaps
from ddtree.graph.ops.draft_attention import DraftAttention
from ddtree.graph.ops.embed import Embed
from ddtree.graph.ops.expert_mlp import ExpertMlp
from ddtree.graph.ops.gather_rows import GatherRows
from ddtree.graph.ops.latent_write import LatentWrite
from ddtree.graph.ops.linear import Linear
from ddtree.graph.ops.linear_group import LinearGroup
from ddtree.graph.ops.mla_latent import MlaLatent
from ddtree.graph.ops.mla_norms import MlaNorms
from ddtree.graph.ops.mla_query import MlaQuery
from ddtree.graph.ops.mla_tree_attention import MlaTreeAttention
from ddtree.graph.ops.mla_value import MlaValue
from ddtree.graph.ops.rms_norm import RmsNorm
from ddtree.graph.ops.rotate import Rotate
from ddtree.graph.ops.route import Route
from ddtree.graph.ops.sample import Sample
from ddtree.graph.ops.select_rows import SelectRows
from ddtree.graph.ops.stop import Stop
from ddtree.graph.ops.swiglu import Swiglu
from ddtree.graph.ops.top_k import TopK

# Ops that a block in YAML may name. The others belong to the decode loop, to tensor parallelism or to a fusion: the builder
# and the passes place them.
MODEL_OPS: tuple[type[Op], ...] = (
    Embed, RmsNorm, Linear, Rotate, Swiglu, Add, MlaLatent, MlaQuery, MlaTreeAttention, MlaValue, CacheWrite,
    DraftAttention, Route, ExpertMlp, SelectRows,
)  # fmt: skip
LOOP_OPS: tuple[type[Op], ...] = (ConcatTaps, GatherRows, TopK, BuildTree, Sample, Accept, CacheCommit, Stop)
RANK_OPS: tuple[type[Op], ...] = (AllReduce, AllGather)
FUSED_OPS: tuple[type[Op], ...] = (AddRmsNorm, AllReduceAddRmsNorm, LatentWrite, LinearGroup, MlaNorms)


def all_ops() -> tuple[type[Op], ...]:
    """Every op class."""
    return MODEL_OPS + LOOP_OPS + RANK_OPS + FUSED_OPS


def yaml_ops() -> tuple[type[Op], ...]:
    """The op classes that YAML may name."""
    return MODEL_OPS
