"""Launch of the root-mean-square norm: a few lanes, a warp or a block per normalised vector."""

from __future__ import annotations

from ddtree.graph.ops.rms_norm import RmsNorm
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import (
    VECTOR,
    WARP,
    ceil_div,
    domain,
    domain_suffix,
    kernel_name,
    require_bf16,
    require_vectors,
    warps,
)

MOST_LANES = 512
SMALL_BLOCK = 128  # threads of a block that holds several short vectors


def lanes(width: int) -> int:
    """Threads that share a vector of `width` elements: a power of two up to a warp, else whole warps."""
    vectors = width // VECTOR
    if vectors <= WARP:
        return 1 << (vectors - 1).bit_length()
    return warps(ceil_div(vectors, ceil_div(vectors, MOST_LANES)))


def tiles(op: RmsNorm, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows, of any number of heads."""
    width = op.x.shape[-1]
    require_bf16(op.x, op.y)
    require_vectors(f"the normalised axis of {op.x.name}", width)
    heads = op.x.width // width
    group = lanes(width)
    threads = SMALL_BLOCK if group < WARP else group
    return (
        Tile(
            name=kernel_name("rms_norm", heads, width, op.eps, domain_suffix(op.x)),
            template="rms_norm",
            constants={
                "width": width, "heads": heads, "eps": op.eps, "lanes": group, "threads": threads, "domain": domain(op.x),
            },
            args=(Arg("tensor", "x"), Arg("weight", "weight"), Arg("rows"), Arg("tensor", "y")),
            grid=(ceil_div(op.x.shape[0] * heads, threads // group), 1, 1),
            block=threads,
        ),
    )  # fmt: skip
