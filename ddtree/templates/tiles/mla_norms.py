"""Launch of MLA's two norms: one block per row and norm."""

from __future__ import annotations

from ddtree.graph.ops.mla_norms import MlaNorms
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles import latent_write, rms_norm
from ddtree.templates.tiles.rowwise import WARP, kernel_name


def tiles(op: MlaNorms, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated rows and one for prompt rows. Lanes are those of the two ops' own kernels, so that bits are."""
    norm, write = op.parts()
    (first,) = rms_norm.tiles(norm, target, tree=tree, tuning={})
    (second,) = latent_write.tiles(write, target, tree=tree, tuning={})
    lanes = int(first.constants["lanes"])  # type: ignore[arg-type]
    threads = max(second.block, lanes)
    names = [second.name.removeprefix("latent_write_"), op.x.shape[1], op.eps]
    return (
        Tile(
            name=kernel_name("mla_norms", *names),
            template="mla_norms",
            constants={
                **second.constants, "latent_eps": op.latent_eps, "width": op.x.shape[1], "eps": op.eps, "threads": threads,
                "norm_lanes": lanes if lanes < WARP else threads, "domain": first.constants["domain"],
            },
            args=(
                Arg("tensor", "x"), Arg("weight", "weight"), Arg("tensor", "latent"), Arg("weight", "latent_weight"), Arg("rows"),
                Arg("tensor", "y"), Arg("scratch" if tree else "pages", "cache"),
            ),
            grid=(op.x.shape[0], 2, 1),
            block=threads,
        ),
    )  # fmt: skip
