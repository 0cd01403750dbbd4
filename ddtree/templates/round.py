"""The kernels between the steps of a round (include/ddtree/round.cuh, loop.cuh), and the memory that they share with the host."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import Limits
from ddtree.graph.rows import MAX_ROWS
from ddtree.templates.kernel import Arg, Constant, Tile

RING_ROUNDS, RING_BYTES = 2048, 32 << 20  # most rounds that the host may be behind, and most memory for their records

# The arguments of each kernel, by the names that the executor binds. `choice` and `more` are the handles of the graph's
# conditional nodes (which row capacity; whether the loop goes on), 0 without such a node.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "draft_rows": ("round", "draft_table", "draft_ids"),
    "tree_rows": ("round", "node_token", "node_parent", "node_depth", "count", "verify_table", "verify_ids", "choice"),
    "force_accept": (
        "round", "trace", "turns", "node_token", "node_parent", "node_depth", "count", "chosen", "path", "length", "emitted", "kept",
        "done",
    ),
    "commit_rows": ("round", "count", "path", "length", "commit_table"),
    "advance": (
        "round", "count", "path", "length", "emitted", "kept", "done", "node_token", "node_parent", "node_depth", "node_score",
        "ring", "control", "budget_state", "more",
    ),
}  # fmt: skip

CONTROL = np.dtype(  # struct Control
    {
        "names": ["head", "ended", "pause", "tail"],
        "formats": [np.uint32] * 4,
        "offsets": [0, 4, 64, 68],
        "itemsize": 128,
    }
)


def round_tiles(limits: Limits, mask_id: int, *, forced: bool = False) -> dict[str, Tile]:
    """The launches between the steps, by name; one block each. `forced`: accepted lengths come from a list."""
    sizes = {
        "sequences": limits.sequences,
        "block": limits.block,
        "depths": limits.depths,
        "nodes": limits.nodes,
        "mask_id": mask_id,
    }
    derived: dict[str, Constant] = {  # from the sizes
        "ring": ring_rounds(limits),
        "record_bytes": record_dtype(limits).itemsize,
        "buckets": tuple(needed_buckets(limits)),
        "chooses": limits.auto,
    }
    suffix = "_".join(map(str, sizes.values())) + ("_auto" if limits.auto else "")
    return {
        name: Tile(
            name=f"{name}_{suffix}",
            template=name,
            constants={**sizes, **derived},
            args=tuple(Arg("workspace", a) for a in arguments),
            grid=(1, 1, 1),
            block=MAX_ROWS,
        )
        for name, arguments in ARGUMENTS.items()
        if (limits.block or name != "draft_rows") and (forced or name != "force_accept")
    }


def state_dtype() -> np.dtype:
    """`struct Round`: counters, device addresses of the arrays that have one int32 per slot, and time stamps."""
    counters = [("active", np.int32), ("budget", np.int32), ("turn", np.uint32), ("launches", np.uint32)]
    arrays = [(name, np.uint64) for name in ("slots", "committed", "anchor", "remaining", "limit", "budgets")]
    return np.dtype([*counters, *arrays, ("time", np.uint64, 3)])


def record_dtype(limits: Limits) -> np.dtype:
    """`struct RoundRecord`, one entry of the ring."""
    wide, nodes, sequences = limits.depths + 1, limits.nodes, limits.sequences
    slot = np.dtype(
        [
            ("length", np.int32), ("kept", np.int32), ("done", np.int32), ("nodes", np.int32),
            ("path", np.int32, wide), ("emitted", np.int32, wide),
            ("token", np.int32, nodes), ("parent", np.int32, nodes), ("depth", np.int32, nodes),
        ]
    )  # fmt: skip
    return np.dtype(
        [
            ("time", np.uint64, 4),
            ("active", np.int32),
            ("rows", np.int32),
            ("slots", np.int32, sequences),
            ("drafted", np.int32),
            ("unused", np.int32),
            *((name, np.float64) for name in ("ms", "expected", "before")),
            ("factor", np.float64, (sequences, wide)),
            ("score", np.float64, (sequences, nodes)),
            ("slot", slot, sequences),
        ],
        align=True,
    )


def ring_rounds(limits: Limits) -> int:
    """Entries of the ring, a power of two."""
    return 1 << min(RING_ROUNDS, RING_BYTES // record_dtype(limits).itemsize).bit_length() - 1
