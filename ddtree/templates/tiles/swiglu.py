"""Launch of swiglu: eight elements a thread."""

from __future__ import annotations

from ddtree.graph.ops.swiglu import Swiglu
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


def tiles(op: Swiglu, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    require_bf16(op.gate, op.up)
    require_vectors(f"a row of {op.gate.name}", op.gate.width)
    return (
        Tile(
            name=kernel_name("swiglu", op.y.width, domain_suffix(op.y)),
            template="swiglu",
            constants={"width": op.y.width, "threads": THREADS, "domain": domain(op.y)},
            args=(Arg("tensor", "gate"), Arg("tensor", "up"), Arg("rows"), Arg("tensor", "y")),
            grid=(ceil_div(op.y.shape[0] * op.y.width // VECTOR, THREADS), 1, 1),
            block=THREADS,
        ),
    )
