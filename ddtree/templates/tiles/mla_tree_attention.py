"""Launches of MLA attention: partial results of tree rows and their merge; or prompt rows in one walk."""

from __future__ import annotations

import math

from ddtree.graph.op import OpError
from ddtree.graph.ops.mla_tree_attention import MlaTreeAttention
from ddtree.graph.rows import MAX_ROWS
from ddtree.templates.kernel import Arg, Constant, Tile, Workspace
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import ceil_div, kernel_name, require_bf16

THREADS = 256
MERGE_THREADS = 128
TILE_KEYS = 32
HEAD_TILE = 8  # heads that share an mma
MOST_TILES = 4  # head tiles of a block: registers allow no more
SPLITS = ((8192, 128), (65536, 512), (1 << 31, 2048))  # below this position: positions of a segment


def segments(context: int) -> int:
    """Segments of a sequence of `context` positions; the cuts are the same for every sequence and step."""
    count = begin = 0
    for end, length in SPLITS:
        count += max(0, ceil_div(min(end, context) - begin, length))
        begin = end
    return count


def tiles(op: MlaTreeAttention, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """Two kernels for tree rows, one for prompt rows. `blocks_per_sm` tunes the grid of the first."""
    require_bf16(op.q, op.y)
    key, latent = op.q.shape[2], op.y.shape[2]
    if latent % 128 or key % 16:
        raise OpError(
            f"attention needs a latent of whole 128 elements and a rope part of whole 16, found {latent} and {key - latent}"
        )
    return _tree(op, target, tuning) if tree else (_prompt(op),)


def _head_tiles(heads: int) -> int:
    """Head tiles of a row in one block, a power of two."""
    return min(MOST_TILES, 1 << (ceil_div(heads, HEAD_TILE) - 1).bit_length())


def _constants(op: MlaTreeAttention, group: int) -> dict[str, Constant]:
    rows, heads, key = op.q.shape
    return {
        "heads": heads, "latent": op.y.shape[2], "rope": key - op.y.shape[2], "rows": rows, "group": group,
        "head_tiles": _head_tiles(heads), "scale_log2": op.scale * math.log2(math.e), "smem": _smem(op, group),
    }  # fmt: skip


def _name(kernel: str, op: MlaTreeAttention, *more: object) -> str:
    rows, heads, key = op.q.shape
    return kernel_name(kernel, f"h{heads}", f"k{key}", f"v{op.y.shape[2]}", f"r{rows}", *more)


def _scale_name(op: MlaTreeAttention) -> str:
    return f"s{op.scale!r}"


def _smem(op: MlaTreeAttention, group: int) -> int:
    """Bytes of struct MlaShared: two tiles of keys, four scores of each query, weights, factors, path."""
    _, heads, key = op.q.shape
    queries = group * _head_tiles(heads) * HEAD_TILE
    return 2 * TILE_KEYS * (2 * key + 16) + queries * (4 * 4 * (TILE_KEYS + 4) + 2 * (TILE_KEYS + 8) + 4) + 4 * MAX_ROWS


def _tree(op: MlaTreeAttention, target: Target, tuning: dict[str, int]) -> tuple[Tile, ...]:
    rows, heads, _ = op.q.shape
    latent, context = op.y.shape[2], op.cache.context
    if rows > MAX_ROWS:
        raise OpError(f"a step has at most {MAX_ROWS} tree rows, found {rows}")
    head_tiles = _head_tiles(heads)
    # Rows of a group share every key that a block loads; one row alone would only wait for absent ones.
    group = max(1, min(MOST_TILES, 1 << (rows - 1).bit_length()) // head_tiles)
    parts = ceil_div(ceil_div(heads, HEAD_TILE), head_tiles)
    blocks_per_sm = tuning.get("blocks_per_sm", 2 if group * head_tiles == 1 else 1)
    most_items = parts * rows * (2 + segments(context))
    workspace = (
        Workspace("sums", segments(context) * rows * heads * latent * 4),
        Workspace("stats", segments(context) * rows * heads * 8),
    )
    sums, stats = Arg("workspace", "sums"), Arg("workspace", "stats")
    constants = _constants(op, group)
    return (
        Tile(
            name=_name("mla_tree_attention", op, f"g{group}", f"c{context}", f"b{blocks_per_sm}", _scale_name(op)),
            template="mla_tree_attention",
            constants=constants | {"context": context, "segments": segments(context), "blocks_per_sm": blocks_per_sm},
            args=(Arg("tensor", "q"), Arg("pages", "cache"), Arg("scratch", "cache"), Arg("rows"), sums, stats),
            grid=(min(most_items, blocks_per_sm * target.sms), 1, 1),
            block=THREADS,
            smem=_smem(op, group),
            workspace=workspace,
        ),
        Tile(
            name=_name("mla_tree_attention_merge", op),
            template="mla_tree_attention_merge",
            constants={name: constants[name] for name in ("heads", "latent", "rope", "rows")},
            args=(sums, stats, Arg("rows"), Arg("tensor", "y")),
            grid=(ceil_div(rows * heads * latent // 4, MERGE_THREADS), 1, 1),
            block=MERGE_THREADS,
            workspace=workspace,
        ),
    )


def _prompt(op: MlaTreeAttention) -> Tile:
    rows, heads, _ = op.q.shape
    head_tiles = _head_tiles(heads)
    group = MOST_TILES // head_tiles
    constants = _constants(op, group)
    return Tile(
        name=_name("mla_tree_attention_prompt", op, _scale_name(op)),
        template="mla_tree_attention_prompt",
        constants=constants,
        args=(Arg("tensor", "q"), Arg("pages", "cache"), Arg("rows"), Arg("tensor", "y")),
        grid=(ceil_div(rows, group), ceil_div(ceil_div(heads, HEAD_TILE), head_tiles), 1),
        block=THREADS,
        smem=_smem(op, group),
    )
