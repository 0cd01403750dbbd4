"""Inputs and NumPy references of kernels/primitives.cu."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator.memory import bf16

Array = np.ndarray[Any, Any]

SOURCE = (Path(__file__).parent / "kernels" / "primitives.cu").read_text()
NAMES = re.findall(r"KERNEL\(\d+\) (\w+)", SOURCE)


@dataclass(frozen=True)
class Case:
    """One launch. `args` are the kernel's; `outputs` the positions to compare, `want` their values, all exact."""

    name: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: list[Any]
    outputs: tuple[int, ...]
    want: list[Array]
    smem: int = 0
    cooperative: bool = False

    def fresh_args(self) -> list[Any]:
        """Arguments with arrays that may be written."""
        return [a.copy() if isinstance(a, np.ndarray) else a for a in self.args]


@dataclass
class _Registry:
    makers: list[Callable[[], Case]] = field(default_factory=list)

    def __call__(self, maker: Callable[[], Case]) -> Callable[[], Case]:
        self.makers.append(maker)
        return maker


_case = _Registry()


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def words(*shape: int, seed: int = 0) -> Array:
    """Random 32-bit words."""
    return _rng(seed).integers(0, 1 << 32, shape, dtype=np.uint32)


def _zeros(*shape: int, dtype: Any = np.uint32) -> Array:
    return np.zeros(shape, dtype)


@_case
def _indices() -> Case:
    bz, by, bx, tz, ty, tx = np.meshgrid(*map(np.arange, (2, 2, 3, 2, 3, 4)), indexing="ij")
    want = (bx | by << 4 | bz << 8 | tx << 12 | ty << 16 | tz << 20).reshape(-1).astype(np.uint32)
    return Case("3-D indices", "indices", (3, 2, 2), (4, 3, 2), [_zeros(want.size)], (0,), [want])


def fragments(a: Array, b: Array, c: Array) -> list[Array]:
    """Matrices [n, 16, 16] bf16, [n, 16, 8] bf16, [n, 16, 8] float32 as the registers of 32 lanes."""
    lane = np.arange(32)
    g, t = lane // 4, lane % 4 * 2

    def pair(x: Array, y: Array) -> Array:
        return x.view(np.uint16).astype(np.uint32) | y.view(np.uint16).astype(np.uint32) << 16

    fa = np.stack([pair(a[:, g + i, t + j], a[:, g + i, t + j + 1]) for j in (0, 8) for i in (0, 8)], -1)
    fb = np.stack([pair(b[:, t + j, g], b[:, t + j + 1, g]) for j in (0, 8)], -1)
    return [np.ascontiguousarray(fa), np.ascontiguousarray(fb), accumulators(c)]


def accumulators(c: Array) -> Array:
    """[n, 16, 8] as the D registers of 32 lanes."""
    lane = np.arange(32)
    g, t = lane // 4, lane % 4 * 2
    return np.ascontiguousarray(np.stack([c[:, g + i, t + j] for i in (0, 8) for j in (0, 1)], -1).astype(np.float32))


@_case
def _mma_exact_sums() -> Case:
    r = _rng(1)
    a, b = r.integers(-8, 9, (16, 16, 16)), r.integers(-8, 9, (16, 16, 8))
    c = r.integers(-999, 1000, (16, 16, 8))
    args = [*fragments(bf16(a), bf16(b), c), _zeros(16, 32, 4, dtype=np.float32)]
    return Case("mma of exactly representable sums", "mma", (16,), (32,), args, (3,), [accumulators(a @ b + c)])


@_case
def _ldmatrix() -> Case:
    memory, row = words(1024), _rng(2).integers(0, 256, 32, dtype=np.uint32)
    halves = memory.view(np.uint16).reshape(256, 8)[row]  # [address lane, element]
    lane = np.arange(32)
    parts = []
    for transposed in (False, True):
        for count in (1, 2, 4):
            for i in range(count):
                m = halves[8 * i : 8 * i + 8].astype(np.uint32)
                m = m.T if transposed else m
                parts.append(m[lane // 4, lane % 4 * 2] | m[lane // 4, lane % 4 * 2 + 1] << 16)
    want = np.concatenate(parts)
    return Case("ldmatrix", "ldmatrix", (1,), (32,), [memory, row, _zeros(want.size)], (2,), [want], smem=4096)


@_case
def _async_copies() -> Case:
    source = words(512, 4).view(np.int32)
    valid = (_rng(3).random((8, 64)) < 0.7).astype(np.uint32)
    t = np.arange(64)
    want = np.stack([np.where(valid[g, :, None] != 0, source[g * 64 + (t ^ g)], 0) for g in range(8)])
    want[3] = [1, 2, 3, 4]
    args = [source, valid, _zeros(512, 4, dtype=np.int32)]
    return Case("cp.async", "async_copies", (1,), (64,), args, (2,), [want.reshape(512, 4)], smem=8192)


@_case
def _block_votes() -> Case:
    p = np.stack([_rng(4).random(96) < q for q in (0.5, 0.0, 1.0, 0.02, 0.98)]).astype(np.int32) * 6
    votes = np.stack([(p != 0).sum(1), p.any(1), p.all(1)], 1)
    want = np.repeat(votes, 96, axis=1).astype(np.int32)
    return Case("__syncthreads_count/or/and", "block_votes", (5,), (96,), [p, np.zeros_like(want)], (1,), [want])


@_case
def _named_barriers() -> Case:
    rounds = 21
    source = words(rounds, 64).view(np.int32)
    tail = np.concatenate([source.reshape(-1)[:64][::-1], source.reshape(-1)[64:128][::-1]])
    want = np.concatenate([source[:, ::-1].reshape(-1), tail])
    args = [source, np.zeros_like(want), rounds]
    return Case("named barriers", "named_barriers", (1,), (128,), args, (1,), [want], smem=1024)


@_case
def _bulk_pipeline() -> Case:
    source = words(9, 64, 4).view(np.int32)
    want = np.ascontiguousarray(source[:, ::-1])
    args = [source, np.zeros_like(want), 9]
    return Case("mbarrier and bulk copies", "bulk_pipeline", (1,), (96,), args, (1,), [want], smem=2080)


@_case
def _last_arriver() -> Case:
    source = words(5, 64)
    want = np.zeros(64, np.uint32)
    for b in range(5):
        want = want * np.uint32(31) + source[b] * np.uint32(b + 1)
    args = [source, np.zeros_like(source), _zeros(1), _zeros(64)]
    return Case("last arriver", "last_arriver", (5,), (64,), args, (2, 3), [np.array([5], np.uint32), want])


@_case
def _publish() -> Case:
    source = words(64)
    args = [source, _zeros(64), _zeros(4), _zeros(64)]
    return Case("publish", "publish", (3,), (64,), args, (3,), [source + np.roll(source, -1)], cooperative=True)


@_case
def _grid_barrier() -> Case:
    source = words(512)
    x = np.roll(source * np.uint32(3) + np.uint32(1), -64) ^ source
    args = [source, _zeros(512), _zeros(512), _zeros(2)]
    want = [np.roll(x, -(5 * 64 + 1)), np.array([0, 3], np.uint32)]
    return Case("grid_sync", "grid_barrier", (8,), (64,), args, (2, 3), want, cooperative=True)


@_case
def _relaxed_words() -> Case:
    source = words(64, 4) & np.uint32(0x7FFFFFFF)
    args = [source, np.full((64, 4), 0xFFFFFFFF, np.uint32), np.zeros_like(source)]
    return Case("relaxed words", "relaxed_words", (2,), (64,), args, (2,), [source], cooperative=True)


@_case
def _contention() -> Case:
    x = words(4096) >> np.uint32(1)
    out = _zeros(26)
    out[17] = out[19] = 0xFFFFFFFF
    want = out.copy()
    want[:16] = np.bincount(x & 15, minlength=16)
    want[16:20] = x.max(), x.min(), np.bitwise_or.reduce(x & 0xFF), np.bitwise_and.reduce(x | np.uint32(0xFFFF0000))
    total = int(x.sum(dtype=np.uint64))
    want[20] = total & 0xFFFFFFFF
    want[22], want[23] = total & 0xFFFFFFFF, total >> 32
    want[24] = int((x >> 8).sum(dtype=np.uint64)) & 0xFFFFFFFF
    want[25] = x.max()
    args = [x, out, _zeros(1, dtype=np.float32), x.size]
    return Case("atomics", "contention", (8,), (128,), args, (1, 2), [want, np.array([(x & 255).sum()], np.float32)])


@_case
def _shared_histogram() -> Case:
    x = words(1000)
    want = np.bincount(x & 15, minlength=16).astype(np.uint32)
    return Case("shared atomics", "shared_histogram", (1,), (128,), [x, _zeros(16), 1000], (1,), [want])


@_case
def _neighbouring_bytes() -> Case:
    want = (np.arange(32) * 7).astype(np.uint8)
    return Case("byte stores", "neighbouring_bytes", (1,), (32,), [np.zeros_like(want)], (0,), [want])


def butterfly(x: Array, combine: Callable[[Array, Array], Array]) -> Array:
    """[..., 32] reduced over lanes in warp_sum's order."""
    for distance in (16, 8, 4, 2, 1):
        x = combine(x, x[..., np.arange(32) ^ distance])
    return x


def _reductions(threads: int) -> Callable[[], Case]:
    def make() -> Case:
        x = _rng(5).standard_normal((3, threads)).astype(np.float32)
        sums, tops = (butterfly(x.reshape(3, -1, 32), f) for f in (np.add, np.maximum))
        total = sums[:, 0, 0].copy()
        for warp in range(1, threads // 32):
            total += sums[:, warp, 0]
        rows = [sums.reshape(3, -1), tops.reshape(3, -1), np.repeat(total[:, None], threads, 1)]
        want = np.stack([*rows, np.repeat(x.max(1)[:, None], threads, 1)], 1)
        kernel = f"reductions{threads}"
        return Case(f"reductions over {threads}", kernel, (3,), (threads,), [x, np.zeros_like(want)], (1,), [want])

    return make


for _threads in (32, 96, 1024):
    _case(_reductions(_threads))


@_case
def _vectors() -> Case:
    r = _rng(6)
    a, b = (bf16(r.standard_normal((32, 8))) for _ in range(2))
    x, y = a.astype(np.float32), b.astype(np.float32)
    z = np.roll(x, -1, axis=0)
    product = (x * y).astype(np.float32)  # exact: 8 + 8 bits
    rounded = bf16(
        (product.astype(np.float64) + z).astype(np.float32) * np.float32(0.5) - bf16(product).astype(np.float32)
    )
    dot = np.ones(32, np.float32)
    for i in range(8):
        dot = (product[:, i].astype(np.float64) + dot).astype(np.float32)
    exact = (2 * x + y) + dot[:, None]
    args = [a, b, np.zeros_like(a), np.zeros_like(x)]
    return Case("Vec8", "vectors", (1,), (32,), args, (2, 3), [rounded, exact])


@_case
def _parameters() -> Case:
    settings = np.zeros(1, np.dtype([("scale", "f4"), ("offset", "i2", 3), ("seed", "u8")], align=True))
    settings[0] = (1.5, (1, -2, 3), 0x0123456789ABCDEF)
    args = [
        _zeros(9, dtype=np.uint64), settings[0], np.uint8(200), np.int16(-5), 1 << 63, 2.5, np.float64(0.1), None, np.bool_(True),
    ]  # fmt: skip
    want = [0x3FC00000, 281, 0x0123456789ABCDEF, 200, (1 << 64) - 5, 1 << 63, 0x40200000, 0x3FB999999999999A, 3]
    return Case("parameter kinds", "parameters", (1,), (32,), args, (0,), [np.array(want, np.uint64)])


CASES = {case.name: case for case in (make() for make in _case.makers)}
