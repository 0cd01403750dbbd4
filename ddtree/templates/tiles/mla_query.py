"""Launch and weight layout of MlaQuery; see include/ddtree/mla_query.cuh."""

from __future__ import annotations

import numpy as np

from ddtree.graph.op import OpError
from ddtree.graph.ops.mla_query import MlaQuery
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.product import Product, launch, require_bf16
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import domain, kernel_name, rope_constants, rope_digest


def product(op: MlaQuery) -> Product:
    """The op as one product per head: y[h][:latent] = W_UK[h]^T q[h][:nope]."""
    _, heads, width = op.q.shape
    latent = op.weight.shape[1]
    return Product(
        latent, op.nope, batch=heads, x_stride=heads * width, y_stride=heads * (latent + op.rope.dim),
        x_batch=width, y_batch=latent + op.rope.dim,
    )  # fmt: skip


def pack(op: MlaQuery, field: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """W_UK of every head, the first `nope` rows of the head's part of kv_b, transposed and in fragment order."""
    p = product(op)
    return {"fragments": p.pack(array.reshape(p.batch, -1, p.out)[:, : p.inner].transpose(0, 2, 1))}


def tiles(op: MlaQuery, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One launch; the same template serves generated and prompt rows, in other tiles."""
    require_bf16(op.q, op.weight, op.y)
    if op.q.domain != "rows":
        raise OpError(f"{op.q.name} counts {op.q.domain} rows; only rows of the row table have positions to rotate by")
    made = launch(product(op), op.q, target, tree=tree, tuning=tuning)
    p = made.product
    tile = Tile(
        name=kernel_name("mla_query", f"{p.batch}x{p.out}x{p.inner}", op.rope.dim, rope_digest(op.rope), made.suffix),
        template="mla_query",
        constants={**made.constants(), "domain": domain(op.q), "rope": op.rope.dim, **rope_constants(op.rope)},
        args=(Arg("weight", "weight", part="fragments"), Arg("tensor", "q"), Arg("rows"), Arg("tensor", "y")),
        grid=made.grid,
        block=made.threads,
        smem=made.smem,
    )
    return (tile,)
