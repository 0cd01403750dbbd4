"""Launch of the rotary embedding: one block per row."""

from __future__ import annotations

from ddtree.graph.ops.rotate import Rotate
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import kernel_name, require_bf16, rope_constants, rope_digest, warps

USUAL_THREADS = 256


def tiles(op: Rotate, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows; its rows are those of the row table."""
    require_bf16(op.x, op.y)
    _, heads, dim = op.x.shape
    columns = max(1, min(heads, USUAL_THREADS // (dim // 2)))
    threads = warps(columns * dim // 2)
    return (
        Tile(
            name=kernel_name("rotate", heads, dim, rope_digest(op.rope)),
            template="rotate",
            constants={"heads": heads, "dim": dim, "columns": columns, "threads": threads, **rope_constants(op.rope)},
            args=(Arg("tensor", "x"), Arg("rows"), Arg("tensor", "y")),
            grid=(op.x.shape[0], 1, 1),
            block=threads,
        ),
    )
