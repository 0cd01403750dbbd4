"""Launch of the feature taps: one block per row and tap."""

from __future__ import annotations

from ddtree.graph.op import OpError
from ddtree.graph.ops.concat_taps import ConcatTaps
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import copy_threads, domain, domain_suffix, kernel_name, row_bytes


def tiles(op: ConcatTaps, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows; taps must be equally wide."""
    size, taps = row_bytes(op.taps[0]), len(op.taps)
    if any(t.width != op.taps[0].width for t in op.taps):
        raise OpError(f"taps must be equally wide, found {[t.width for t in op.taps]}")
    return (
        Tile(
            name=kernel_name("concat_taps", taps, size, domain_suffix(op.y)),
            template="concat_taps",
            constants={"row_bytes": size, "taps": taps, "threads": copy_threads(size), "domain": domain(op.y)},
            args=(*(Arg("tensor", "taps", index=i) for i in range(taps)), Arg("rows"), Arg("tensor", "y")),
            grid=(op.y.shape[0], taps, 1),
            block=copy_threads(size),
        ),
    )
