"""The kernels that choose the size of trees on the GPU, and those of rounds without a draft, with the state they share
(include/ddtree/choose_budget.cuh, pending.cuh)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ddtree.graph.buckets import BUCKETS
from ddtree.graph.build import Limits
from ddtree.graph.rows import MAX_ROWS
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.tiles.rowwise import copy_threads

THREADS = 256  # more than the 64 sizes that are compared, and a warp for each of eight sequences

# The arguments of each kernel, by the names that the executor binds. `active` is a word with the number of sequences, as
# `struct Round` begins with; `costs` is Costs.table of graph/budget.py in device memory; `pending` is the `features` of the
# context step, and `context_table` its row table. `on_...` are the handles of the round's branches.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "context_rows": ("round", "context_table", "budget_state", "on_take_in", "on_draft", "on_commit"),
    "choose_budget": ("active", "slots", "costs", "node_score", "node_depth", "count", "budget_state"),
    "keep_features": ("active", "slots", "features", "pending", "budget_state"),
    "settle_budget": (
        "active", "slots", "costs", "node_token", "node_parent", "node_depth", "node_score", "emitted", "length", "budget_state",
    ),
}  # fmt: skip


def budget_tiles(limits: Limits, row_bytes: int) -> dict[str, Tile]:
    """The launches by name, in the order of a round; none where every round has the same budget. `row_bytes` is the size of
    a row of the target's features, as the verify step writes them."""
    if not limits.auto:
        return {}
    entries = limits.sequences * limits.nodes
    shared = 8 * (2 * entries + limits.sequences * (limits.depths + 1) + MAX_ROWS) + 4 * (entries + limits.sequences)
    launch = {  # blocks, threads, bytes of shared memory
        "context_rows": (1, MAX_ROWS, 0),
        "choose_budget": (1, THREADS, -(-shared // 8) * 8),
        "keep_features": (limits.sequences, copy_threads(row_bytes), 0),
        "settle_budget": (1, THREADS, 0),
    }
    sizes = (limits.sequences, limits.depths, limits.nodes, limits.pending, row_bytes)
    constants = dict(zip(("sequences", "depths", "nodes", "pending", "row_bytes"), sizes, strict=True))
    return {
        name: Tile(
            name=f"{name}_{'_'.join(map(str, sizes))}",
            template=name,
            constants={**constants, "threads": threads, "buckets": BUCKETS, "smem": smem},
            args=tuple(Arg("workspace", a) for a in ARGUMENTS[name]),
            grid=(blocks, 1, 1),
            block=threads,
            smem=smem,
        )
        for name, (blocks, threads, smem) in launch.items()
    }


def state_dtype(limits: Limits) -> np.dtype:
    """`struct BudgetState` (include/ddtree/budget_state.cuh)."""
    arrays = [(name, np.float64, limits.depths) for name in ("hits", "mass", "ratio")]
    arrays.append(("factor", np.float64, limits.depths + 1))
    slot = np.dtype([*arrays, *((name, np.int32) for name in ("walk", "full", "waiting"))], align=True)
    scalars = [(name, np.float64) for name in ("lost", "ms", "expected", "before")]
    counters = [(name, np.int32) for name in ("draft", "waited", "rows", "bucket", "take_in", "drafted")]
    return np.dtype([*scalars, *counters, ("slot", slot, limits.sequences)], align=True)


def first_state(limits: Limits) -> np.ndarray:
    """[1] of state_dtype: nothing is known, and the first round drafts."""
    state = np.zeros(1, state_dtype(limits))
    state["draft"], state["slot"]["ratio"] = 1, 1
    return state


def joined(limits: Limits, slot: int) -> list[tuple[int, np.ndarray]]:
    """What changes in the state when a sequence joins, as (offset, bytes): nothing is known of its text, so drafting gets its
    chance."""
    state, dtype = first_state(limits), state_dtype(limits)
    fields: list[tuple[int, np.ndarray]] = [(dtype.fields[n][1], state[n]) for n in ("lost", "draft", "waited")]  # type: ignore[index]
    slots = dtype.fields["slot"][1] + slot * dtype["slot"].base.itemsize  # type: ignore[index]
    return [*fields, (slots, state["slot"][0, slot : slot + 1])]
