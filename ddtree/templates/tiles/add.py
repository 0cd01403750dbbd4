"""Launch of add: eight elements a thread."""

from __future__ import annotations

from ddtree.graph.ops.add import Add
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import (
    VECTOR,
    ceil_div,
    domain,
    domain_suffix,
    kernel_name,
    require_bf16,
    require_vectors,
)

THREADS = 256


def tiles(op: Add, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    require_bf16(op.a, op.b)
    require_vectors(f"a row of {op.a.name}", op.a.width)
    return (
        Tile(
            name=kernel_name("add", op.y.width, domain_suffix(op.y)),
            template="add",
            constants={"width": op.y.width, "threads": THREADS, "domain": domain(op.y)},
            args=(Arg("tensor", "a"), Arg("tensor", "b"), Arg("rows"), Arg("tensor", "y")),
            grid=(ceil_div(op.y.shape[0] * op.y.width // VECTOR, THREADS), 1, 1),
            block=THREADS,
        ),
    )
