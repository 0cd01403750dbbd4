"""Launch of a cache commit: one block per sequence and entry of its path."""

from __future__ import annotations

from ddtree.graph.ops.cache_commit import CacheCommit
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import copy_threads, kernel_name, ring, row_bytes


def tiles(op: CacheCommit, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel, whatever the rows are."""
    size, (sequences, depth) = row_bytes(op.cache), op.path.shape
    return (
        Tile(
            name=kernel_name("cache_commit", f"ring{ring(op.cache)}" if ring(op.cache) else "", depth, size),
            template="cache_commit",
            constants={"row_bytes": size, "ring": ring(op.cache), "depth": depth, "threads": copy_threads(size)},
            args=(
                Arg("tensor", "path"), Arg("tensor", "length"), Arg("rows"), Arg("scratch", "cache"), Arg("pages", "cache"),
            ),
            grid=(depth, sequences, 1),
            block=copy_threads(size),
        ),
    )  # fmt: skip
