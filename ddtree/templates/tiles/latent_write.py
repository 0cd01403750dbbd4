"""Launch of the latent row and its cache write: that of the row, with the cache as destination."""

from __future__ import annotations

from dataclasses import replace

from ddtree.graph.ops.latent_write import LatentWrite
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles import mla_latent
from ddtree.templates.tiles.rowwise import kernel_name, ring


def tiles(op: LatentWrite, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """Tree rows go to scratch, committed rows to pages or to the ring."""
    (row,) = mla_latent.tiles(op.parts()[0], target, tree=tree, tuning=tuning)
    slots = 0 if tree else ring(op.cache)
    place = "tree" if tree else f"ring{slots}" if slots else "pages"
    return (
        replace(
            row,
            name=kernel_name("latent_write", place, row.name.removeprefix("mla_latent_")),
            template="latent_write",
            constants={**row.constants, "ring": slots, "tree": tree},
            args=(*row.args[:-1], Arg("scratch" if tree else "pages", "cache")),
        ),
    )
