"""What the kernels that walk rows share: names, vector widths, live rows, rotation tables."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ddtree.graph.op import OpError
from ddtree.graph.rope import Rope
from ddtree.graph.tensor import Cache, DType, Tensor

VECTOR = 8  # BF16 elements of one 16-byte access
WARP = 32
PAGE = 64  # positions of a page


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def warps(threads: int) -> int:
    """`threads`, rounded up to whole warps."""
    return ceil_div(threads, WARP) * WARP


def kernel_name(*parts: object) -> str:
    """A C identifier of an op's name and the values that specialise it: 1e-05 becomes 1em05."""
    return "_".join(str(p).replace("-", "m").replace("+", "").replace(".", "p") for p in parts if str(p))


def require_vectors(what: str, elements: int) -> None:
    """Raise OpError unless rows of that many BF16 elements are whole 16-byte vectors."""
    if elements % VECTOR:
        raise OpError(
            f"{what} has {elements} elements; the kernels move 16 bytes at a time, so it must be a multiple of {VECTOR}"
        )


def row_bytes(t: Tensor | Cache) -> int:
    """Bytes of one row, whole 16-byte vectors, or OpError."""
    size = t.row_bytes if isinstance(t, Cache) else t.row_bytes(1)
    if size % 16:
        raise OpError(
            f"a row of {t.name} has {size} bytes; the kernels copy 16 bytes at a time, so it must be a multiple of 16"
        )
    return size


def copy_threads(nbytes: int) -> int:
    """Threads that copy a row of `nbytes`: 16 bytes each, at most 256 of them."""
    return min(256, warps(nbytes // 16))


def domain(t: Tensor) -> str:
    """The C++ name of what a tensor's first axis counts."""
    if t.domain not in ("rows", "wanted", "sequences"):
        raise OpError(f"{t.name}: no kernel counts the live rows of domain {t.domain!r}")
    return f"ddtree::Domain::{t.domain}"


def domain_suffix(t: Tensor) -> str:
    """The part of a kernel's name that tells domains apart; nothing for `rows`."""
    return "" if t.domain == "rows" else t.domain


def require_bf16(*tensors: Tensor) -> None:
    """Raise OpError unless all are BF16."""
    for t in tensors:
        if t.dtype is not DType.BF16:
            raise OpError(f"{t.name} must be bf16, found {t.dtype}")


def ring(cache: Cache) -> int:
    """Positions of a windowed cache's ring; 0 for a cache in pages."""
    return 0 if cache.window is None else cache.pages() * PAGE


def rope_constants(rope: Rope) -> dict[str, Any]:
    """What a shell prints of a rotation rule: layout, gain and each pair's frequency, rounded to fp32."""
    return {
        "layout": f"ddtree::Layout::{rope.layout}",
        "gain": float(np.float32(rope.gain)),
        "frequencies": tuple(float(f) for f in rope.inverse_frequencies().astype(np.float32)),
    }


def rope_digest(rope: Rope) -> str:
    """Eight hexadecimal digits that tell rotation rules apart in kernel names: rules of one name may differ in numbers."""
    return hashlib.sha256(repr(sorted(rope_constants(rope).items())).encode()).hexdigest()[:8]
