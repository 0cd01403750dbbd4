"""Launch of all_gather: sixteen bytes a thread, as many blocks as are resident at once."""

from __future__ import annotations

from ddtree.graph.op import OpError
from ddtree.graph.ops.all_gather import AllGather
from ddtree.graph.tensor import DType
from ddtree.templates.group import require_ranks
from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import ceil_div, domain, domain_suffix, kernel_name, row_bytes

THREADS = 256


def tiles(op: AllGather, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows, bf16 and fp32."""
    require_ranks(op.ranks)
    if op.x.dtype not in (DType.BF16, DType.FP32):  # a word of all ones means that nothing came yet
        raise OpError(f"{op.x.name}: ranks exchange bf16 and fp32, found {op.x.dtype}")
    words = row_bytes(op.x) // 16
    return (
        Tile(
            name=kernel_name("all_gather", op.ranks, words, domain_suffix(op.x)),
            template="all_gather",
            constants={"ranks": op.ranks, "words": words, "threads": THREADS, "domain": domain(op.x)},
            args=(Arg("tensor", "x"), Arg("rows"), Arg("group"), Arg("tensor", "y")),
            grid=(min(target.sms, ceil_div(op.y.shape[0] * words, THREADS)), 1, 1),
            block=THREADS,
            coresident=True,
        ),
    )
