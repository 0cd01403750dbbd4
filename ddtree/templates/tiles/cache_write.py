"""Launch of a cache write: one block per row."""

from __future__ import annotations

from ddtree.graph.ops.cache_write import CacheWrite
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import copy_threads, kernel_name, ring, row_bytes


def tiles(op: CacheWrite, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """Tree rows go to scratch, committed rows to pages or to the ring."""
    size = row_bytes(op.cache)
    slots = 0 if tree else ring(op.cache)
    return (
        Tile(
            name=kernel_name("cache_write", "tree" if tree else f"ring{slots}" if slots else "pages", size),
            template="cache_write",
            constants={"row_bytes": size, "ring": slots, "threads": copy_threads(size), "tree": tree},
            args=(Arg("tensor", "x"), Arg("rows"), Arg("scratch" if tree else "pages", "cache")),
            grid=(op.x.shape[0], 1, 1),
            block=copy_threads(size),
        ),
    )
