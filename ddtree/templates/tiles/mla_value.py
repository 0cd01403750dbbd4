"""Launch and weight layout of MlaValue; see include/ddtree/mla_value.cuh."""

from __future__ import annotations

import numpy as np

from ddtree.graph.ops.mla_value import MlaValue
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.product import Product, launch, require_bf16
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import domain, domain_suffix, kernel_name


def product(op: MlaValue) -> Product:
    """The op as one product per head: y[h] = W_UV[h] z[h]."""
    _, heads, latent = op.z.shape
    return Product(
        op.value,
        latent,
        batch=heads,
        x_stride=heads * latent,
        y_stride=heads * op.value,
        x_batch=latent,
        y_batch=op.value,
    )


def pack(op: MlaValue, field: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """W_UV of every head, the last `value` rows of the head's part of kv_b, in fragment order."""
    p = product(op)
    return {"fragments": p.pack(array.reshape(p.batch, -1, p.inner)[:, -p.out :])}


def tiles(op: MlaValue, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One launch; the same template serves generated and prompt rows, in other tiles."""
    require_bf16(op.z, op.weight, op.y)
    made = launch(product(op), op.z, target, tree=tree, tuning=tuning)
    p = made.product
    tile = Tile(
        name=kernel_name("mla_value", f"{p.batch}x{p.out}x{p.inner}", domain_suffix(op.z), made.suffix),
        template="mla_value",
        constants={**made.constants(), "domain": domain(op.z)},
        args=(Arg("weight", "weight", part="fragments"), Arg("tensor", "z"), Arg("rows"), Arg("tensor", "y")),
        grid=made.grid,
        block=made.threads,
        smem=made.smem,
    )
    return (tile,)
