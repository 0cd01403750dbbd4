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
MERGE_THREADS = 256
TILE_KEYS = 32
HEAD_TILE = 8  # heads that share an mma
MOST_TILES = 8  # head tiles of a block: registers allow no more
SPLITS = ((4096, 128), (32768, 256), (1 << 31, 1024))  # below this position: positions of a segment
PIECES = 4  # of a segment, at most


def segments(context: int) -> int:
    """Segments of a sequence of `context` positions; the cuts are the same for every sequence and step."""
    count = begin = 0
    for end, length in SPLITS:
        count += max(0, ceil_div(min(end, context) - begin, length))
        begin = end
    return count


def parts(context: int) -> int:
    """Parts that a row can have: segments, and pieces instead of the last one."""
    return segments(context) - 1 + PIECES


def merge_smem(columns: int) -> int:
    """Bytes of shared memory of attention_merge.cuh for a block of so many columns: a sum of each strand."""
    return 4 * (MERGE_THREADS // 32) * (columns + columns // 64 * 8)


def tiles(op: MlaTreeAttention, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """Two kernels for tree rows, one for prompt rows. `blocks_per_sm` tunes the grid of the first."""
    require_bf16(op.q, op.y)
    key, latent = op.q.shape[2], op.y.shape[2]
    if latent % 128 or key % 16:
        raise OpError(
            f"attention needs a latent of whole 128 elements and a rope part of whole 16, found {latent} and {key - latent}"
        )
    return _tree(op, target, tuning) if tree else (_prompt(op),)


def _power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def _head_tiles(heads: int) -> int:
    """Head tiles of a row, rounded up to a power of two."""
    return _power_of_two(ceil_div(heads, HEAD_TILE))


def _constants(op: MlaTreeAttention, most: int) -> dict[str, Constant]:
    rows, heads, key = op.q.shape
    return {
        "heads": heads, "latent": op.y.shape[2], "rope": key - op.y.shape[2], "rows": rows, "head_tiles": _head_tiles(heads),
        "most": most, "scale_log2": op.scale * math.log2(math.e),
    }  # fmt: skip


def _name(kernel: str, op: MlaTreeAttention, *more: object) -> str:
    rows, heads, key = op.q.shape
    return kernel_name(kernel, f"h{heads}", f"k{key}", f"v{op.y.shape[2]}", f"r{rows}", *more)


def _scale_name(op: MlaTreeAttention) -> str:
    return f"s{op.scale!r}"


def _walk_smem(op: MlaTreeAttention, most: int) -> int:
    """Bytes of struct MlaShared: two tiles of keys, parts of the scores, factors, changes, last positions, path."""
    key = op.q.shape[2]
    parts = 3 if most == MOST_TILES else 4
    used = 2 * TILE_KEYS * (2 * key + 16) + most * 2 * parts * 512 + most * HEAD_TILE * 4 + 8 + 8 * 4 + MAX_ROWS
    return ceil_div(used, 16) * 16


def _tree_smem(op: MlaTreeAttention, most: int) -> int:
    """Bytes of struct MlaTreeShared: the walk's and, for each row, its group's numbers and its entry of the row table."""
    rows = op.q.shape[0]
    groups = 80 + 4 * 12 + 8 + ceil_div(rows * (4 + 4 * 2), 4) * 4 + 8
    return ceil_div(_walk_smem(op, most) + groups + rows * (4 + 4 + 2), 16) * 16


def _tree(op: MlaTreeAttention, target: Target, tuning: dict[str, int]) -> tuple[Tile, ...]:
    rows, heads, _ = op.q.shape
    latent, context = op.y.shape[2], op.cache.context
    if rows > MAX_ROWS:
        raise OpError(f"a step has at most {MAX_ROWS} tree rows, found {rows}")
    head_tiles = _head_tiles(heads)
    most = min(MOST_TILES, _power_of_two(rows * head_tiles))
    own = min(most, head_tiles, MOST_TILES // 2)  # more blocks for the walks of single rows
    # At 4,096 positions there are 32 segments: this many units of rows give every SM one. What would be too large for a
    # block is small enough as it is; then the smaller units are for rows that share nothing.
    small = max(own, _power_of_two(ceil_div(rows * head_tiles, 4)))
    small = own if small >= most else small
    blocks_per_sm = tuning.get("blocks_per_sm", 2 if most == 1 else 1)
    items = rows * head_tiles * parts(context)
    workspace = (
        Workspace("sums", parts(context) * rows * heads * latent * 2),
        Workspace("stats", parts(context) * rows * heads * 8),
    )
    sums, stats = Arg("workspace", "sums"), Arg("workspace", "stats")
    constants = _constants(op, most)
    slices = 2 if rows * heads < target.sms and latent % 256 == 0 else 1
    smem = _tree_smem(op, most)
    return (
        Tile(
            name=_name(
                "mla_tree_attention", op, f"t{own}", small, most, f"c{context}", f"b{blocks_per_sm}", _scale_name(op)
            ),
            template="mla_tree_attention",
            constants=constants
            | {"own": own, "small": small, "context": context, "segments": segments(context), "smem": smem}
            | {"blocks_per_sm": blocks_per_sm},
            args=(Arg("tensor", "q"), Arg("pages", "cache"), Arg("scratch", "cache"), Arg("rows"), sums, stats),
            grid=(min(items + 2 * rows * head_tiles, blocks_per_sm * target.sms), 1, 1),
            block=THREADS,
            smem=smem,
            workspace=workspace,
        ),
        Tile(
            name=_name("mla_tree_attention_merge", op, f"s{slices}"),
            template="mla_tree_attention_merge",
            constants={name: constants[name] for name in ("heads", "latent", "rope", "rows")}
            | {"slices": slices, "smem": merge_smem(latent // slices)},
            args=(sums, stats, Arg("rows"), Arg("tensor", "y")),
            grid=(rows * heads, slices, 1),
            block=MERGE_THREADS,
            smem=merge_smem(latent // slices),
            workspace=workspace,
        ),
    )


def _prompt(op: MlaTreeAttention) -> Tile:
    rows, heads, _ = op.q.shape
    head_tiles = _head_tiles(heads)
    most = min(MOST_TILES, _power_of_two(rows * head_tiles))
    of_row = min(most, head_tiles)
    smem = _walk_smem(op, most)
    return Tile(
        name=_name("mla_tree_attention_prompt", op, _scale_name(op)),
        template="mla_tree_attention_prompt",
        constants=_constants(op, most) | {"smem": smem},
        args=(Arg("tensor", "q"), Arg("pages", "cache"), Arg("rows"), Arg("tensor", "y")),
        grid=(ceil_div(rows, most // of_row), head_tiles // of_row, 1),
        block=THREADS,
        smem=smem,
    )
