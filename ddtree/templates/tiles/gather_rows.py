"""Launch of gather_rows: one block per row of y."""

from __future__ import annotations

from ddtree.graph.ops.gather_rows import GatherRows
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import copy_threads, kernel_name, row_bytes


def tiles(op: GatherRows, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows; its grid covers the live rows at full capacity."""
    size = row_bytes(op.y)
    return (
        Tile(
            name=kernel_name("gather_rows", size),
            template="gather_rows",
            constants={"row_bytes": size, "threads": copy_threads(size)},
            args=(Arg("tensor", "x"), Arg("rows"), Arg("tensor", "y")),
            grid=(op.y.shape[0], 1, 1),
            block=copy_threads(size),
        ),
    )
