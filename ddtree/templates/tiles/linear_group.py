"""Launch and weight layout of LinearGroup: generated rows share a launch, prompt rows keep one for each weight."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np

from ddtree.graph.ops.linear_group import LinearGroup
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.product import TILE, Launch, Product, launch, require_bf16
from ddtree.templates.target import Target
from ddtree.templates.tiles import linear
from ddtree.templates.tiles.rowwise import ceil_div, domain, domain_suffix, kernel_name


def pack(op: LinearGroup, field: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """One weight in fragment order, as for a linear of its own."""
    out, inner = array.shape
    return {"fragments": Product(out, inner, x_stride=inner, y_stride=out).pack(array[None])}


def tiles(op: LinearGroup, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One launch for all weights of generated rows. The number of slices, and with it the order of sums, follows from the
    input axis alone there, so that a weight's bits do not depend on its company; of prompt rows it does not."""
    require_bf16(op.x, *op.matrices)
    parts = [linear.product(part) for part in op.parts()]
    if not tree or any(part.slices != parts[0].slices for part in parts):
        made = [linear.tiles(part, target, tree=tree, tuning=tuning)[0] for part in op.parts()]
        return tuple(_member(tile, i) for i, tile in enumerate(made))
    outs, inner = [w.shape[0] for w in op.matrices], op.x.width
    all_rows = sum(ceil_div(out, TILE) * TILE for out in outs)
    whole = Product(all_rows, inner, x_stride=inner, y_stride=gcd(*outs), slices=parts[0].slices)
    together = launch(whole, op.x, target, tree=tree, tuning=tuning, may_split=True)
    blocks = _blocks(together, outs)
    if together.split > 1 and sum(blocks) > target.sms:  # they would not be resident together
        together = launch(whole, op.x, target, tree=tree, tuning=tuning)
        blocks = _blocks(together, outs)
    firsts = [sum(blocks[:i]) for i in range(len(blocks))]
    split = together.workspace(sum(blocks) // together.split)
    members = range(len(outs))
    return (
        Tile(
            name=kernel_name("linear_group", *(f"{out}" for out in outs), inner, op.dtype, domain_suffix(op.x), together.suffix),
            template="linear_group",
            constants={
                **together.constants(), "outs": tuple(outs), "firsts": tuple(firsts), "domain": domain(op.x),
                "out_type": "float" if op.dtype == "fp32" else "bf16",
            },
            args=(
                *(Arg("weight", "matrices", part="fragments", index=i) for i in members), Arg("tensor", "x"), Arg("rows"),
                *(Arg("tensor", "ys", index=i) for i in members), *(Arg("workspace", w.name) for w in split),
            ),
            grid=(together.groups, sum(blocks), 1),
            block=together.threads,
            smem=together.smem,
            workspace=split,
            coresident=together.split > 1,
        ),
    )  # fmt: skip


def _blocks(made: Launch, outs: list[int]) -> list[int]:
    return [ceil_div(out, TILE * made.block_tiles) * made.split for out in outs]


def _member(tile: Tile, index: int) -> Tile:
    """A linear's launch with the operands of the group's member; workspaces are its own."""
    names = {"weight": "matrices", "y": "ys"}

    def of(arg: Arg) -> Arg:
        if arg.kind == "workspace":
            return replace(arg, of=f"{arg.of}{index}")
        return replace(arg, of=names[arg.of], index=index) if arg.of in names else arg

    spaces = tuple(replace(w, name=f"{w.name}{index}") for w in tile.workspace)
    return replace(tile, args=tuple(of(arg) for arg in tile.args), workspace=spaces)
