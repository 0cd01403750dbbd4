"""Launches of Route: one for generated rows; for prompt rows the router's product, an ordinary linear into a workspace, then the
choice of a block for each row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddtree.graph.op import OpError
from ddtree.graph.ops.route import Route
from ddtree.graph.tensor import DType
from ddtree.templates.kernel import Arg, Tile, Workspace
from ddtree.templates.product import STEP, TILE, Product, require_bf16
from ddtree.templates.target import Target
from ddtree.templates.tiles.linear import linear_tile
from ddtree.templates.tiles.rowwise import WARP, ceil_div, domain, domain_suffix, kernel_name

MOST_EXPERTS = 1024  # a lane of eight warps keeps four scores in registers
MOST_CHOSEN = 32
EXPERTS_PER_WARP = 96  # three a lane
MOST_ROWS = 64  # of the launch for generated rows
GROUP_ROWS = 32  # rows past which another group of blocks shares them, where it is resident too
CHAIN = 6  # steps of a warp in it: 384 experts of 7168 columns take 120 blocks, at most one on an SM


def product(op: Route) -> Product:
    """logits = weight x."""
    experts, hidden = op.weight.shape
    return Product(experts, hidden, x_stride=hidden, y_stride=experts)


def pack(op: Route, field: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """The router's weight in fragment order, the bias as it is."""
    return {"fragments": product(op).pack(array[None])} if field == "weight" else {"": array}


def tiles(op: Route, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One launch for generated rows, else two; the first of those is the kernel of a Linear of that shape."""
    require_bf16(op.x, op.weight)
    experts = op.weight.shape[0]
    if op.bias.dtype is not DType.FP32:
        raise OpError(f"bias {op.bias.name} must be fp32, found {op.bias.dtype}: it decides between close experts")
    if experts > MOST_EXPERTS or op.top_k > MOST_CHOSEN:
        raise OpError(
            f"the kernel chooses at most {MOST_CHOSEN} of {MOST_EXPERTS} experts, the op wants {op.top_k} of {experts}"
        )
    if tree and op.x.shape[0] <= MOST_ROWS:
        return (_decode_tile(op, target),)
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


def _decode_tile(op: Route, target: Target) -> Tile:
    """A block for every 16 experts and part of K, all resident: those that choose wait for the others' sums."""
    p = product(op)
    steps = ceil_div(p.inner, STEP)
    warps = min(8, ceil_div(steps, CHAIN))
    split = ceil_div(steps, CHAIN * warps)
    smem = warps * (CHAIN * 1024 + 1024 + 8)
    resident = (2 if target.arch == "sm_90a" else 1) * target.sms
    groups = max(1, min(ceil_div(op.x.shape[0], GROUP_ROWS), resident // (p.tiles * split)))
    return Tile(
        name=kernel_name("route_decode", *op.weight.shape, op.top_k, op.scale, domain_suffix(op.x)),
        template="route_decode",
        constants={
            "hidden": p.inner, "experts": p.out, "top_k": op.top_k, "scale": op.scale, "steps": p.steps, "warps": warps, "chain": CHAIN,
            "split": split, "smem": smem, "domain": domain(op.x),
        },
        args=(
            Arg("weight", "weight", part="fragments"), Arg("weight", "bias"), Arg("tensor", "x"), Arg("rows"),
            Arg("workspace", "sums"), Arg("tensor", "ids"), Arg("tensor", "gates"),
        ),
        grid=(max(p.tiles * split, min(op.x.shape[0], target.sms // 8)), groups, 1),
        block=WARP * warps,
        smem=smem,
        workspace=(Workspace("sums", op.x.shape[0] * split * p.tiles * TILE * 4, fill=0xFF),),
        coresident=True,
    )  # fmt: skip
