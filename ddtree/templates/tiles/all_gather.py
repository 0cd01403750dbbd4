"""Launch of all_gather: sixteen bytes a thread."""

from __future__ import annotations

from ddtree.graph.ops.all_gather import AllGather
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import ceil_div, domain, domain_suffix, kernel_name, row_bytes

THREADS = 256
MOST_BLOCKS = 1024  # blocks stride over the rest


def tiles(op: AllGather, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows, and for every element type."""
    words = row_bytes(op.x) // 16
    return (
        Tile(
            name=kernel_name("all_gather", op.ranks, words, domain_suffix(op.x)),
            template="all_gather",
            constants={"ranks": op.ranks, "words": words, "threads": THREADS, "domain": domain(op.x)},
            args=(Arg("peers", "x"), Arg("rows"), Arg("tensor", "y")),
            grid=(min(MOST_BLOCKS, ceil_div(op.y.shape[0] * op.ranks * words, THREADS)), 1, 1),
            block=THREADS,
        ),
    )
