"""Launch of accept: one block, one thread per row."""

from __future__ import annotations

from ddtree.graph.op import OpError
from ddtree.graph.ops.accept import Accept
from ddtree.graph.rows import MAX_ROWS
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import kernel_name


def tiles(op: Accept, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel; rows are tree nodes."""
    if op.ids.shape[0] > MAX_ROWS:
        raise OpError(f"accept walks the trees of at most {MAX_ROWS} rows, found room for {op.ids.shape[0]}")
    return (
        Tile(
            name=kernel_name("accept", op.depths, op.sequences),
            template="accept",
            constants={"depths": op.depths, "sequences": op.sequences},
            args=(
                Arg("tensor", "ids"), Arg("tensor", "chosen"), Arg("rows"),
                Arg("tensor", "path"), Arg("tensor", "length"), Arg("tensor", "emitted"),
            ),
            grid=(1, 1, 1),
            block=MAX_ROWS,
        ),
    )  # fmt: skip
