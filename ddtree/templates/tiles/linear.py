"""Launch and weight layout of Linear; see include/ddtree/linear.cuh."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ddtree.graph.ops.linear import Linear
from ddtree.graph.tensor import Tensor
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.product import Product, launch, require_bf16
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import domain, domain_suffix, kernel_name


def product(op: Linear) -> Product:
    """The op as one product: y = weight x."""
    out, inner = op.weight.shape
    return Product(out, inner, x_stride=inner, y_stride=out)


def pack(op: Linear, field: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """The weight in fragment order (Product.pack)."""
    return {"fragments": product(op).pack(array[None])}


def tiles(op: Linear, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One launch; the same template serves generated and prompt rows, in other tiles."""
    require_bf16(op.x, op.weight)
    return (linear_tile(product(op), op.x, Arg("tensor", "y"), op.dtype, target, tree=tree, tuning=tuning),)


def linear_tile(
    product: Product,
    x: Tensor,
    y: Arg,
    dtype: Literal["bf16", "fp32"],
    target: Target,
    *,
    tree: bool,
    tuning: dict[str, int],
) -> Tile:
    """The launch of y = W x for an op with the fields `x` and `weight`, whose part "fragments" is Product.pack's."""
    made = launch(product, x, target, tree=tree, tuning=tuning, may_split=True)
    return Tile(
        name=kernel_name("linear", f"{product.out}x{product.inner}", dtype, domain_suffix(x), made.suffix),
        template="linear",
        constants={**made.constants(), "domain": domain(x), "out_type": "float" if dtype == "fp32" else "bf16"},
        args=(Arg("weight", "weight", part="fragments"), Arg("tensor", "x"), Arg("rows"), y, *made.workspace_args()),
        grid=made.grid,
        block=made.threads,
        smem=made.smem,
        workspace=made.workspace(),
        coresident=made.split > 1,
    )
