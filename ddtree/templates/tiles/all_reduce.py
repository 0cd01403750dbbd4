"""Launch of all_reduce: a block a row, as many blocks as are resident at once."""

from __future__ import annotations

from ddtree.graph.ops.all_reduce import AllReduce
from ddtree.graph.tensor import Tensor
from ddtree.templates.group import require_ranks
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rms_norm import lanes
from ddtree.templates.tiles.rowwise import WARP, domain, domain_suffix, kernel_name, require_bf16, require_vectors


def row_threads(x: Tensor) -> int:
    """Threads of a block that has a row: those of the norm, but whole warps."""
    require_bf16(x)
    require_vectors(f"a row of {x.name}", x.width)
    return max(WARP, lanes(x.width))


def tiles(op: AllReduce, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    require_ranks(op.ranks)
    threads = row_threads(op.x)
    return (
        Tile(
            name=kernel_name("all_reduce", op.ranks, op.x.width, domain_suffix(op.x)),
            template="all_reduce",
            constants={"ranks": op.ranks, "width": op.x.width, "threads": threads, "domain": domain(op.x)},
            args=(Arg("tensor", "x"), Arg("rows"), Arg("group"), Arg("tensor", "y")),
            grid=(min(op.x.shape[0], target.sms), 1, 1),
            block=threads,
            coresident=True,
        ),
    )
