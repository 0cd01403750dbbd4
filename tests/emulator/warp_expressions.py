"""Warp collectives as expressions over the lanes of two warps, with NumPy references."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
THREADS = 64


def _lane_sources(kind: str, amount: int | str, width: int) -> Array:
    """Which lane each of 32 lanes reads; out of its segment: its own (CUDA C programming guide, warp shuffle functions)."""
    lane = np.arange(32)
    if kind == "":
        index = {"lane - 5": lane - 5, "0": lane * 0}[str(amount)]
        return (lane & ~(width - 1)) | (index & (width - 1))
    distance = int(amount) & 31  # the GPU reads five bits
    source = {"up_": lane - distance, "down_": lane + distance, "xor_": lane ^ distance}[kind]
    first, last = lane & ~(width - 1), lane | (width - 1)
    outside = source < first if kind == "up_" else source > last
    return np.where(outside, lane, source)


def inputs() -> tuple[Array, Array]:
    """Words and long words of 64 threads."""
    rng = np.random.default_rng(8)
    return rng.integers(0, 1 << 32, THREADS, dtype=np.uint32), rng.integers(0, 1 << 64, THREADS, dtype=np.uint64)


def table() -> list[tuple[str, Array]]:
    """(expression, its value in each thread as u64). u, l: inputs; key = u % 5; par: the lanes of one parity."""
    u, long = inputs()
    u2, l2 = u.reshape(2, 32), long.reshape(2, 32)
    rows: list[tuple[str, Array]] = []
    for width in (32, 16, 8, 2):
        for kind, amounts in (
            ("", ("lane - 5", "0")),
            ("up_", (0, 1, 3, 31, 33)),
            ("down_", (0, 1, 7, 31, 33)),
            ("xor_", (1, 9, 31, 33)),
        ):
            for amount in amounts:
                want = u2[:, _lane_sources(kind, amount, width)]
                rows.append((f"__shfl_{kind}sync(FULL, u, {amount}, {width})", want))
    rows.append(("__shfl_xor_sync(FULL, l, 5)", l2[:, np.arange(32) ^ 5]))
    rows.append(("bitcast<u64>(__shfl_xor_sync(FULL, bitcast<double>(l), 5))", l2[:, np.arange(32) ^ 5]))
    rows.append(
        ("__shfl_down_sync(par, u, 4)", u2[:, np.where(np.arange(32) + 4 > 31, np.arange(32), np.arange(32) + 4)])
    )
    parity = np.arange(32) & 1
    key = u2 % 5
    for mask, lanes in (("FULL", np.ones((32, 32), bool)), ("par", parity[:, None] == parity[None, :])):
        for text, p in (("u & 1", u2 & 1 != 0), ("key == 2", key == 2), ("1", u2 == u2)):
            votes = ((p[:, None, :] & lanes) << np.arange(32)).sum(-1).astype(np.uint64)
            full = (lanes << np.arange(32)).sum(-1).astype(np.uint64)
            rows += [(f"__ballot_sync({mask}, {text})", votes), (f"__any_sync({mask}, {text}) != 0", votes != 0)]
            rows.append((f"__all_sync({mask}, {text}) != 0", votes == full))
        for op, f, start in (("min", np.minimum, 0xFFFFFFFF), ("max", np.maximum, 0), ("and", np.bitwise_and, 0xFFFFFFFF),
                             ("or", np.bitwise_or, 0), ("xor", np.bitwise_xor, 0), ("add", np.add, 0)):  # fmt: skip
            chosen = np.where(lanes, u2[:, None, :], np.uint32(start))
            rows.append((f"__reduce_{op}_sync({mask}, u)", f.reduce(chosen, axis=-1, dtype=np.uint32)))
        for op, g in (("min", np.minimum), ("max", np.maximum)):
            neutral = np.int32((1 << 31) - 1 if op == "min" else -(1 << 31))
            reduced = g.reduce(np.where(lanes, u2.view(np.int32)[:, None, :], neutral), axis=-1)
            rows.append((f"u32(__reduce_{op}_sync({mask}, int(u)))", reduced.view(np.uint32)))
        equal = (((key[:, :, None] == key[:, None, :]) & lanes) << np.arange(32)).sum(-1)
        rows += [(f"__match_any_sync({mask}, key)", equal), (f"__match_any_sync({mask}, u64(key) << 40)", equal)]
    return [(text, np.ascontiguousarray(want).reshape(-1).astype(np.uint64)) for text, want in rows]


def source() -> str:
    """One kernel, `warp_expressions(words, longs, out)`: out[i * 64 + thread] is expression i."""
    lines = "".join(f"    out[{i * THREADS} + threadIdx.x] = {text};\n" for i, (text, _) in enumerate(table()))
    return (
        '#include "ddtree/prims.cuh"\nusing namespace ddtree;\n'
        f"KERNEL({THREADS}) warp_expressions(const u32* words, const u64* longs, u64* out) {{\n"
        "    const int lane = threadIdx.x % 32;\n"
        "    const u32 FULL = 0xffffffffu, par = lane & 1 ? 0xaaaaaaaau : 0x55555555u, u = words[threadIdx.x], key = u % 5;\n"
        "    const u64 l = longs[threadIdx.x];\n" + lines + "}\n"
    )
