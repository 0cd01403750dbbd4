"""The fusions, in the order in which they run. A fused op has the bits of the ops that it stands for (docs/numerics.md)."""

from __future__ import annotations

from collections.abc import Callable

from ddtree.graph.passes.add_rms_norm import fuse_add_rms_norm
from ddtree.graph.passes.all_reduce_add_rms_norm import fuse_all_reduce
from ddtree.graph.passes.latent_write import fuse_latent_write
from ddtree.graph.passes.linear_group import group_linears
from ddtree.graph.passes.mla_norms import fuse_mla_norms
from ddtree.graph.step_graph import StepGraph

# By the name of the fused op, which is also the key below `passes` in YAML that switches the fusion.
FUSIONS: dict[str, Callable[[StepGraph], StepGraph]] = {
    "add_rms_norm": fuse_add_rms_norm,
    "all_reduce_add_rms_norm": fuse_all_reduce,
    "latent_write": fuse_latent_write,
    "linear_group": group_linears,
    "mla_norms": fuse_mla_norms,
}
