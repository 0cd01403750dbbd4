"""Launch of a residual addition with its norm: that of the norm, which reads two terms instead of their sum."""

from __future__ import annotations

from dataclasses import replace

from ddtree.graph.ops.add_rms_norm import AddRmsNorm
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles import rms_norm
from ddtree.templates.tiles.rowwise import kernel_name, require_bf16


def tiles(op: AddRmsNorm, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    require_bf16(op.a, op.b)
    (norm,) = rms_norm.tiles(op.parts()[1], target, tree=tree, tuning=tuning)
    return (
        replace(
            norm,
            name=kernel_name("add", norm.name),
            template="add_rms_norm",
            args=(Arg("tensor", "a"), Arg("tensor", "b"), *norm.args[1:-1], Arg("tensor", "sum"), Arg("tensor", "y")),
        ),
    )
