"""Launch of the latent row: one block per row, warps for the norm and one for the rotation."""

from __future__ import annotations

from ddtree.graph.ops.mla_latent import MlaLatent
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import (
    VECTOR,
    WARP,
    kernel_name,
    require_bf16,
    require_vectors,
    rope_constants,
    rope_digest,
    warps,
)


def tiles(op: MlaLatent, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    latent, rope = op.weight.shape[0], op.rope.dim
    require_bf16(op.x, op.y)
    require_vectors("the latent", latent)
    require_vectors("the rotated key", rope)
    lanes = warps(latent // VECTOR)
    return (
        Tile(
            name=kernel_name("mla_latent", latent, rope, op.eps, rope_digest(op.rope)),
            template="mla_latent",
            constants={
                "latent": latent, "rope": rope, "eps": op.eps, "lanes": lanes, "threads": lanes + WARP,
                **rope_constants(op.rope),
            },
            args=(Arg("tensor", "x"), Arg("weight", "weight"), Arg("rows"), Arg("tensor", "y")),
            grid=(op.x.shape[0], 1, 1),
            block=lanes + WARP,
        ),
    )  # fmt: skip
