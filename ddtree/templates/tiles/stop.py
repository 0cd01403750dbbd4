"""Launch of stop: one thread per sequence."""

from __future__ import annotations

from ddtree.graph.ops.stop import Stop
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import WARP, ceil_div, kernel_name


def tiles(op: Stop, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel; the stop ids are part of it, as they are of the model."""
    return (
        Tile(
            name=kernel_name("stop", op.emitted.shape[1], "at", *op.ids),
            template="stop",
            constants={"width": op.emitted.shape[1], "threads": WARP, "ids": op.ids},
            args=(
                Arg("tensor", "emitted"), Arg("tensor", "length"), Arg("tensor", "remaining"), Arg("rows"),
                Arg("tensor", "kept"), Arg("tensor", "done"),
            ),
            grid=(ceil_div(op.length.shape[0], WARP), 1, 1),
            block=WARP,
        ),
    )  # fmt: skip
