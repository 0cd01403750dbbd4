"""The kernel that packs weights while they are loaded (include/ddtree/rearrange.cuh)."""

from __future__ import annotations

from ddtree.templates.kernel import Arg, Tile
from ddtree.templates.target import Target

THREADS = 256


def rearrange_tile(target: Target, bits: int) -> Tile:
    """For elements of 4 or 16 bits; arguments: Rearrange, raw, table, out."""
    return Tile(
        name=f"rearrange_{bits}",
        template="rearrange",
        constants={"threads": THREADS, "bits": bits},
        args=tuple(Arg("workspace", name) for name in ("what", "raw", "table", "out")),
        grid=(target.sms * 8, 1, 1),
        block=THREADS,
    )
