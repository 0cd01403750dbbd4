"""Launch of a cache commit: one block per layer, sequence and entry of its path."""

from __future__ import annotations

from ddtree.graph.ops.cache_commit import CacheCommit
from ddtree.templates.kernel import Arg, ArgKind, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import copy_threads, kernel_name, ring, row_bytes

KINDS: tuple[ArgKind, ...] = ("scratch", "pages")


def tiles(op: CacheCommit, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel, whatever the rows are."""
    first, count, (sequences, depth) = op.layers[0], len(op.layers), op.path.shape
    size, slots = row_bytes(first), ring(first)
    return (
        Tile(
            name=kernel_name("cache_commit", f"ring{slots}" if slots else "", count, depth, size),
            template="cache_commit",
            constants={"row_bytes": size, "ring": slots, "depth": depth, "threads": copy_threads(size), "layers": count},
            args=(
                Arg("tensor", "path"), Arg("tensor", "length"), Arg("rows"),
                *(Arg(kind, "layers", index=i) for kind in KINDS for i in range(count)),
            ),
            grid=(depth, sequences, count),
            block=copy_threads(size),
        ),
    )  # fmt: skip
