"""The kernels between the steps of a round: row tables, and the record for the host (include/ddtree/round.cuh)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ddtree.graph.build import Limits
from ddtree.templates.kernel import Arg, Tile

# The arguments of each kernel, by the names that the executor binds.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "draft_rows": ("round", "draft_table", "draft_ids"),
    "tree_rows": ("round", "node_token", "node_parent", "node_depth", "count", "verify_table", "verify_ids"),
    "commit_rows": ("round", "count", "path", "length", "commit_table"),
    "advance": (
        "round", "count", "path", "length", "emitted", "kept", "done", "node_token", "node_parent", "node_depth", "node_score",
        "record", "scores", "flag",
    ),
}  # fmt: skip


def round_tiles(limits: Limits, mask_id: int) -> dict[str, Tile]:
    """The launches between the steps, by name; one block each."""
    constants = {"block": limits.block, "depths": limits.depths, "nodes": limits.nodes, "mask_id": mask_id}
    suffix = "_".join(str(v) for v in constants.values())
    return {
        name: Tile(
            name=f"{name}_{suffix}",
            template=name,
            constants=dict(constants),
            args=tuple(Arg("workspace", a) for a in arguments),
            grid=(1, 1, 1),
            block=64,
        )
        for name, arguments in ARGUMENTS.items()
        if limits.block or name != "draft_rows"
    }


def record_dtype(limits: Limits) -> np.dtype:
    """One sequence slot of the record that `advance` writes: int32 fields in order."""
    wide, nodes = limits.depths + 1, limits.nodes
    return np.dtype(
        [
            ("length", np.int32), ("kept", np.int32), ("done", np.int32), ("nodes", np.int32),
            ("path", np.int32, wide), ("emitted", np.int32, wide),
            ("token", np.int32, nodes), ("parent", np.int32, nodes), ("depth", np.int32, nodes),
        ]
    )  # fmt: skip
