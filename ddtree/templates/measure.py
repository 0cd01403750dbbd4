"""The kernels of measurements: random weights, and the pure read that gives the floor (include/ddtree/{random_fill,stream_read}.cuh)."""

from __future__ import annotations

from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target

FILL_THREADS, READ_THREADS = 256, 256
READ_DEPTH = 8  # 16-byte loads in flight for each thread
READ_PART = 4096  # 16-byte vectors of a block, where there are enough for all SMs


def random_fill_tile(target: Target) -> Tile:
    """Fill a buffer of any size; arguments: RandomFill, base, mask, out."""
    return Tile(
        name="random_fill",
        template="random_fill",
        constants={"threads": FILL_THREADS},
        args=tuple(Arg("workspace", name) for name in ("fill", "base", "mask", "out")),
        grid=(target.sms * 8, 1, 1),
        block=FILL_THREADS,
    )


def read_part(target: Target, nbytes: int) -> int:
    """Vectors of a block: few bytes are spread over all SMs."""
    share = -(-nbytes // 16 // (4 * target.sms))
    return min(READ_PART, -(-share // READ_THREADS) * READ_THREADS)


def stream_read_tile(target: Target, nbytes: int) -> Tile:
    """Read `nbytes` once; arguments: StreamRead, data, and a word that is never written."""
    return Tile(
        name="stream_read",
        template="stream_read",
        constants={"threads": READ_THREADS, "depth": READ_DEPTH},
        args=tuple(Arg("workspace", name) for name in ("read", "data", "never")),
        grid=(max(1, -(-(nbytes // 16) // read_part(target, nbytes))), 1, 1),
        block=READ_THREADS,
    )
