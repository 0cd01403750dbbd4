"""Launches of sample: a scan over chunks of the vocabulary, then one block per row that joins them and filters."""

from __future__ import annotations

from ddtree.graph.ops.sample import Sample
from ddtree.templates.kernel import Arg, Constant, Tile, Workspace
from ddtree.templates.target import Target
from ddtree.templates.tiles.rowwise import domain, domain_suffix, kernel_name
from ddtree.templates.tiles.vocab import PER_THREAD, THREADS, chunks, require_logits, row_blocks

PICK_THREADS = 512
HISTOGRAM = 3 * 4 * 2048 + 16  # bytes of struct Histogram


def tiles(op: Sample, target: Target, *, tree: bool, tuning: dict[str, int]) -> tuple[Tile, ...]:
    """Two kernels for generated and prompt rows."""
    require_logits(op.logits)
    (rows, vocab), parts = op.logits.shape, chunks(op.logits)
    constants: dict[str, Constant] = {"vocab": vocab, "chunks": parts, "domain": domain(op.logits)}
    request = tuple(Arg("tensor", f) for f in ("logits", "temperature", "top_k", "top_p", "seed"))
    best, space = Arg("workspace", "best"), (Workspace("best", 8 * rows * parts),)
    return (
        Tile(
            name=kernel_name("sample_scan", vocab, domain_suffix(op.logits)),
            template="sample_scan",
            constants={**constants, "threads": THREADS, "per_thread": PER_THREAD},
            args=(*request, Arg("rows"), best),
            grid=(parts, row_blocks(op.logits), 1),
            block=THREADS,
            workspace=space,
        ),
        Tile(
            name=kernel_name("sample_pick", vocab, domain_suffix(op.logits)),
            template="sample_pick",
            constants={**constants, "threads": PICK_THREADS, "smem": HISTOGRAM},
            args=(*request, Arg("rows"), best, Arg("tensor", "token")),
            grid=(row_blocks(op.logits), 1, 1),
            block=PICK_THREADS,
            smem=HISTOGRAM,
            workspace=space,
        ),
    )
