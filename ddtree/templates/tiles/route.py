"""Launches of Route: the router's product, an ordinary linear into a workspace, then the choice of a block for each row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddtree.graph.op import OpError
from ddtree.graph.ops.route import Route
from ddtree.graph.tensor import DType
from ddtree.templates.kernel import Arg, Tile, Workspace
from ddtree.templates.product import Product, require_bf16
from ddtree.templates.target import Target
from ddtree.templates.tiles.linear import linear_tile
from ddtree.templates.tiles.rowwise import WARP, domain, domain_suffix, kernel_name

MOST_EXPERTS = 1024  # a lane of eight warps keeps four scores in registers
MOST_CHOSEN = 32
EXPERTS_PER_WARP = 96  # three a lane


def product(op: Route) -> Product:
    """logits = weight x."""
    experts, hidden = op.weight.shape
    return Product(experts, hidden, x_stride=hidden, y_stride=experts)


def pack(op: Route, field: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """The router's weight in fragment order, the bias as it is."""
    return {"fragments": product(op).pack(array[None])} if field == "weight" else {"": array}


def tiles(op: Route, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """Two launches; the first is the kernel of a Linear of that shape."""
    require_bf16(op.x, op.weight)
    experts = op.weight.shape[0]
    if op.bias.dtype is not DType.FP32:
        raise OpError(f"bias {op.bias.name} must be fp32, found {op.bias.dtype}: it decides between close experts")
    if experts > MOST_EXPERTS or op.top_k > MOST_CHOSEN:
        raise OpError(
            f"the kernel chooses at most {MOST_CHOSEN} of {MOST_EXPERTS} experts, the op wants {op.top_k} of {experts}"
        )
    logits = Workspace("logits", op.x.shape[0] * experts * 4)
    to_logits = linear_tile(product(op), op.x, Arg("workspace", logits.name), "fp32", target, tree=tree, tuning=tuning)
    return replace(to_logits, workspace=(logits, *to_logits.workspace)), _choice_tile(op, logits)


def _choice_tile(op: Route, logits: Workspace) -> Tile:
    experts = op.weight.shape[0]
    warps = max(1, min(8, experts // EXPERTS_PER_WARP))
    return Tile(
        name=kernel_name("route", experts, op.top_k, op.scale, domain_suffix(op.x)),
        template="route",
        constants={"experts": experts, "top_k": op.top_k, "scale": op.scale, "warps": warps, "domain": domain(op.x)},
        args=(
            Arg("workspace", logits.name),
            Arg("weight", "bias"),
            Arg("rows"),
            Arg("tensor", "ids"),
            Arg("tensor", "gates"),
        ),
        grid=(op.x.shape[0], 1, 1),
        block=WARP * warps,
        workspace=(logits,),
    )
