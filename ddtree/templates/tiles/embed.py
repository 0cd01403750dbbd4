"""Launch of the embedding: one block per row."""

from __future__ import annotations

from ddtree.graph.ops.embed import Embed
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import copy_threads, domain, domain_suffix, kernel_name, row_bytes


def tiles(op: Embed, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    size = row_bytes(op.y)
    return (
        Tile(
            name=kernel_name("embed", size, domain_suffix(op.y)),
            template="embed",
            constants={"row_bytes": size, "threads": copy_threads(size), "domain": domain(op.y)},
            args=(Arg("tensor", "ids"), Arg("weight", "weight"), Arg("rows"), Arg("tensor", "y")),
            grid=(op.y.shape[0], 1, 1),
            block=copy_threads(size),
        ),
    )
