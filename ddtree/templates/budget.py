"""The kernels that choose the size of trees on the GPU (include/ddtree/choose_budget.cuh), and the state they share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ddtree.graph.buckets import BUCKETS
from ddtree.graph.build import Limits
from ddtree.graph.rows import MAX_ROWS
from ddtree.templates.kernel import Arg, Tile

THREADS = 256  # more than the 64 sizes that are compared, and a warp for each of eight sequences

# The arguments of each kernel, by the names that the executor binds. `costs` is Costs.table of graph/budget.py in device memory,
# `active` a word with the number of sequences, as `struct Round` begins with.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "choose_budget": ("active", "slots", "costs", "node_score", "node_depth", "count", "budget_state"),
    "settle_budget": (
        "active", "slots", "costs", "node_token", "node_parent", "node_depth", "node_score", "emitted", "length", "budget_state",
    ),
}  # fmt: skip


def budget_tiles(limits: Limits) -> dict[str, Tile]:
    """The launches by name, one block each; none where every round has the same budget."""
    if not limits.auto:
        return {}
    constants = {"sequences": limits.sequences, "depths": limits.depths, "nodes": limits.nodes}
    entries = limits.sequences * limits.nodes
    shared = 8 * (2 * entries + limits.sequences * (limits.depths + 1) + MAX_ROWS) + 4 * (entries + limits.sequences)
    smem = {"choose_budget": -(-shared // 8) * 8}
    suffix = "_".join(str(v) for v in constants.values())
    return {
        name: Tile(
            name=f"{name}_{suffix}",
            template=name,
            constants={**constants, "threads": THREADS, "capacities": BUCKETS, "smem": smem.get(name, 0)},
            args=tuple(Arg("workspace", a) for a in arguments),
            grid=(1, 1, 1),
            block=THREADS,
            smem=smem.get(name, 0),
        )
        for name, arguments in ARGUMENTS.items()
    }


def state_dtype(limits: Limits) -> np.dtype:
    """`struct BudgetState`."""
    slot = [
        ("hits", np.float64, limits.depths),
        ("mass", np.float64, limits.depths),
        ("walk", np.int32),
        ("full", np.int32),
    ]
    scalars = [(name, np.float64) for name in ("lost", "ms", "expected")]
    counters = [(name, np.int32) for name in ("draft", "waited", "rows", "bucket")]
    return np.dtype([*scalars, *counters, ("slot", np.dtype(slot), limits.sequences)])


def first_state(limits: Limits) -> np.ndarray:
    """[1] of state_dtype: nothing is known, and the first round drafts."""
    state = np.zeros(1, state_dtype(limits))
    state["draft"] = 1
    return state
