"""Launch of top_k: blocks over chunks of the vocabulary, the last block of a row merges them."""

from __future__ import annotations

from ddtree.graph.op import OpError
from ddtree.graph.ops.top_k import TopK
from ddtree.templates.kernel import Arg, Tile, Workspace
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import ceil_div, domain, domain_suffix, kernel_name
from ddtree.templates.tiles.vocab import PER_THREAD, THREADS, chunks, require_logits, row_blocks

MOST = 63  # a tree has at most 63 nodes below its root, so it looks at no more candidates


def tiles(op: TopK, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """One kernel for generated and prompt rows."""
    require_logits(op.logits)
    if not 1 <= op.k <= MOST:
        raise OpError(f"top_k finds 1..{MOST} candidates, {op.k} were asked for")
    (rows, vocab), parts = op.logits.shape, chunks(op.logits)
    most = max(PER_THREAD, ceil_div(parts * op.k, THREADS))  # keys that a thread holds
    smem = 8 * (THREADS + op.k * most + op.k + parts + 2)  # TopKShared
    return (
        Tile(
            name=kernel_name("top_k", vocab, op.k, domain_suffix(op.logits)),
            template="top_k",
            constants={
                "vocab": vocab, "k": op.k, "threads": THREADS, "per_thread": PER_THREAD, "chunks": parts,
                "smem": smem, "domain": domain(op.logits),
            },
            args=(
                Arg("tensor", "logits"), Arg("rows"), Arg("tensor", "log_prob"), Arg("tensor", "token"),
                Arg("workspace", "keys"), Arg("workspace", "sums"), Arg("workspace", "arrivals"),
            ),
            grid=(parts, row_blocks(op.logits), 1),
            block=THREADS,
            smem=smem,
            workspace=(
                Workspace("keys", 8 * rows * parts * op.k),
                Workspace("sums", 8 * rows * parts),
                Workspace("arrivals", 4 * rows),
            ),
        ),
    )  # fmt: skip
