"""Launch of all_reduce: eight elements a thread."""

from __future__ import annotations

from ddtree.graph.ops.all_reduce import AllReduce
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import (
    VECTOR,
    ceil_div,
    domain,
    domain_suffix,
    kernel_name,
    require_bf16,
    require_vectors,
)

THREADS = 256
MOST_BLOCKS = 1024  # blocks stride over the rest


def tiles(op: AllReduce, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    require_bf16(op.x, op.y)
    require_vectors(f"a row of {op.x.name}", op.x.width)
    return (
        Tile(
            name=kernel_name("all_reduce", op.ranks, op.x.width, domain_suffix(op.x)),
            template="all_reduce",
            constants={"ranks": op.ranks, "width": op.x.width, "threads": THREADS, "domain": domain(op.x)},
            args=(Arg("peers", "x"), Arg("rows"), Arg("tensor", "y")),
            grid=(min(MOST_BLOCKS, ceil_div(op.x.shape[0] * op.x.width // VECTOR, THREADS)), 1, 1),
            block=THREADS,
        ),
    )
