"""The launch that brings weights of later kernels into L2; see include/ddtree/prefetch.cuh."""

from __future__ import annotations

from collections.abc import Sequence

from ddtree.templates.kernel import Arg, Tile

PIECE = 16384  # bytes that a thread asks for; Ranges::kPiece
THREADS = 32


def prefetch_tile(sizes: Sequence[int]) -> Tile:
    """Ask for ranges of `sizes` bytes, multiples of 16; one pointer argument each."""
    pieces = sum(-(-n // PIECE) for n in sizes)
    return Tile(
        name="prefetch_" + "_".join(map(str, sizes)),
        template="prefetch",
        constants={"sizes": tuple(sizes), "threads": THREADS},
        args=tuple(Arg("weight", index=i) for i in range(len(sizes))),
        grid=(-(-pieces // THREADS), 1, 1),
        block=THREADS,
    )
