"""Launch of an all-reduce with the addition and the norm behind it: that of the all-reduce."""

from __future__ import annotations

from dataclasses import replace

from ddtree.graph.ops.all_reduce_add_rms_norm import AllReduceAddRmsNorm
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles import all_reduce, rms_norm
from ddtree.templates.tiles.rowwise import kernel_name, require_bf16


def tiles(op: AllReduceAddRmsNorm, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    require_bf16(op.a)
    reduction, _, norm = op.parts()
    (tile,) = all_reduce.tiles(reduction, target, tree=tree, tuning=tuning)
    return (
        replace(
            tile,
            name=kernel_name(tile.name, "add_rms_norm", op.eps),
            template="all_reduce_add_rms_norm",
            constants=tile.constants | {"lanes": rms_norm.lanes(norm.x.width), "eps": op.eps},
            args=(
                Arg("tensor", "x"), Arg("tensor", "a"), Arg("weight", "weight"), Arg("rows"), Arg("group"),
                Arg("tensor", "sum"), Arg("tensor", "y"),
            ),
        ),
    )  # fmt: skip
