"""Launches of the drafter's attention: partial results of parts of the context, and their merge."""

from __future__ import annotations

import math

from ddtree.graph.op import OpError
from ddtree.graph.ops.draft_attention import DraftAttention
from ddtree.templates.kernel import Arg, Constant, Tile, Workspace
from ddtree.templates.target import SHARED_LIMIT, Target
from ddtree.templates.tiles.mla_tree_attention import MERGE_THREADS, merge_smem
from ddtree.templates.tiles.rowwise import ceil_div, kernel_name, require_bf16, ring

THREADS = 128
TILE_KEYS = 32
QUERIES = 64  # of a block
PART = 64  # positions below which the context is not cut further
MOST_PARTS = 128
BLOCKS_PER_SM = 4


def tiles(op: DraftAttention, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """The same two kernels whatever the rows are. `blocks_per_sm` tunes the grid of the first."""
    require_bf16(op.q, op.k, op.v, op.y)
    rows, heads, dim = op.q.shape
    kv_heads = op.k.shape[1]
    if dim % 16 or heads // kv_heads > QUERIES:
        raise OpError(
            f"attention needs heads of whole 16 elements and at most {QUERIES} of them on a key head, found {dim}, {heads // kv_heads}"
        )
    parts = min(MOST_PARTS, max(1, ceil_div(op.window or op.keys.context, PART)))
    scale = dim**-0.5
    shape: dict[str, Constant] = {
        "heads": heads, "kv_heads": kv_heads, "dim": dim, "rows": rows, "window": op.window, "parts": parts,
    }  # fmt: skip
    groups = ceil_div(rows * (4 + 4 * 2), 4) * 4 + 8
    stage = TILE_KEYS * (2 * (2 * dim + 16) + 4)
    stages = 3 if 3 * stage + groups <= SHARED_LIMIT else 2
    smem = stages * stage + groups
    ring_size = ring(op.keys)
    workspace = (Workspace("sums", parts * rows * heads * dim * 4), Workspace("stats", parts * rows * heads * 8))
    sums, stats = Arg("workspace", "sums"), Arg("workspace", "stats")
    name = (f"h{heads}", f"kv{kv_heads}", f"d{dim}", f"r{rows}", f"w{op.window}", f"p{parts}")
    return (
        Tile(
            name=kernel_name("draft_attention", *name, f"ring{ring_size}" if ring_size else "", "causal" if op.causal else ""),
            template="draft_attention",
            constants=shape | {"ring": ring_size, "causal": op.causal, "scale_log2": scale * math.log2(math.e)}
            | {"stages": stages, "smem": smem},
            args=(
                *(Arg("tensor", f) for f in ("q", "k", "v")), Arg("pages", "keys"), Arg("pages", "values"), Arg("rows"), sums, stats,
            ),
            grid=(min(rows * kv_heads * parts, tuning.get("blocks_per_sm", BLOCKS_PER_SM) * target.sms), 1, 1),
            block=THREADS,
            smem=smem,
            workspace=workspace,
        ),
        Tile(
            name=kernel_name("draft_attention_merge", *name),
            template="draft_attention_merge",
            constants=shape | {"smem": merge_smem(dim)},
            args=(sums, stats, Arg("rows"), Arg("tensor", "y")),
            grid=(rows * heads, 1, 1),
            block=MERGE_THREADS,
            smem=merge_smem(dim),
            workspace=workspace,
        ),
    )  # fmt: skip
