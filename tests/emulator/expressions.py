"""One-line expressions of prims.cuh and of CUDA's own functions: operands, NumPy references, generated kernels.

Each expression is evaluated over thousands of random and special operands. `ulps` is how far the emulator may be from a GPU
(0: the same bits); `reference` computes the same in NumPy where that is possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Range = tuple[float, float]

COUNT = 8192
QUIET_NAN = np.uint32(0x7FFFFFFF)
C_TYPES = {"float": "float", "pair": "bf16x2", "word": "u32", "signed": "int", "half": "bf16", "long": "u64"}


@dataclass(frozen=True)
class Expression:
    """`text` over operands a, b, c of type `operands` (or floats of a range), giving a `result`."""

    text: str
    result: str
    operands: str | Range
    ulps: int = 0
    reference: Callable[[Array, Array, Array], Array] | None = None

    @property
    def operand_type(self) -> str:
        return self.operands if isinstance(self.operands, str) else "float"


def as_float(x: Array) -> Array:
    return x.view(np.float32)


def canonical(x: Array) -> Array:
    """float32 with the only NaN that a GPU produces, as words."""
    return np.where(np.isnan(x), QUIET_NAN, x.astype(np.float32).view(np.uint32))


def halves(x: Array) -> Array:
    """Words as pairs of float32, [n, 2]."""
    return np.stack([x << np.uint32(16), x & np.uint32(0xFFFF0000)], -1).view(np.float32)


def bf16_words(x: Array) -> Array:
    """float32 [n] as bf16 bits, NaN 0x7fff."""
    return np.where(np.isnan(x), 0x7FFF, x.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)).astype(
        np.uint32
    )


def pair_words(x: Array) -> Array:
    """float32 [n, 2] rounded to bf16 pairs."""
    return bf16_words(x[:, 0]) | bf16_words(x[:, 1]) << np.uint32(16)


def _pairwise(f: Callable[..., Array]) -> Callable[[Array, Array, Array], Array]:
    return lambda a, b, c: pair_words(f(halves(a), halves(b), halves(c)))


def _floats(f: Callable[..., Array]) -> Callable[[Array, Array, Array], Array]:
    return lambda a, b, c: canonical(f(*(as_float(x) for x in (a, b, c))))


def _words(f: Callable[..., Array]) -> Callable[[Array, Array, Array], Array]:
    return lambda a, b, c: f(a, b, c).astype(np.uint32)


def _int4(half: int) -> Callable[[Array, Array, Array], Array]:
    def reference(a: Array, b: Array, c: Array) -> Array:
        nibble = [(a >> np.uint32(4 * i) & np.uint32(15)).astype(np.float32) - 8 for i in range(8)]
        words = [
            pair_words(np.stack([nibble[p], nibble[p + 4]], -1)).astype(np.uint64) for p in (2 * half, 2 * half + 1)
        ]
        return words[0] | words[1] << np.uint64(32)

    return reference


def _max_u16x2(a: Array, b: Array, c: Array) -> Array:
    low = np.uint32(0xFFFF)
    return np.maximum(a & low, b & low) | np.maximum(a >> 16, b >> 16) << np.uint32(16)


def _byte_perm(a: Array, b: Array, c: Array) -> Array:
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros_like(both)
    for i in range(4):
        selector = (c >> np.uint32(4 * i) & np.uint32(7)).astype(np.uint64)
        out |= (both >> (selector * np.uint64(8)) & np.uint64(255)) << np.uint64(8 * i)
    return out.astype(np.uint32)


CONVERSIONS = [
    Expression("to_bf16(a)", "half", "float", reference=lambda a, b, c: bf16_words(as_float(a))),
    Expression("round_bf16(a)", "float", "float", reference=lambda a, b, c: bf16_words(as_float(a)) << np.uint32(16)),
    Expression(
        "pack_bf16(a, b)",
        "word",
        "float",
        reference=lambda a, b, c: pair_words(np.stack([as_float(a), as_float(b)], -1)),
    ),
    Expression(
        "make_bf16x2(a, b)",
        "pair",
        "float",
        reference=lambda a, b, c: pair_words(np.stack([as_float(a), as_float(b)], -1)),
    ),
    Expression("to_float(a.lo)", "float", "pair", reference=lambda a, b, c: a << np.uint32(16)),
    Expression("to_float2(a).y", "float", "pair", reference=lambda a, b, c: a & np.uint32(0xFFFF0000)),
    Expression("bf16_lo(a)", "float", "word", reference=lambda a, b, c: a << np.uint32(16)),
    Expression("bf16_hi(a)", "float", "word", reference=lambda a, b, c: a & np.uint32(0xFFFF0000)),
    Expression("dup_lo(a)", "pair", "word", reference=lambda a, b, c: (a & np.uint32(0xFFFF)) * np.uint32(0x10001)),
    Expression("dup_hi(a)", "pair", "word", reference=lambda a, b, c: (a >> np.uint32(16)) * np.uint32(0x10001)),
]
PAIRS = [
    Expression("add2(a, b)", "pair", "pair", reference=_pairwise(lambda a, b, c: a + b)),
    Expression("sub2(a, b)", "pair", "pair", reference=_pairwise(lambda a, b, c: a - b)),
    Expression("mul2(a, b)", "pair", "pair", reference=_pairwise(lambda a, b, c: a * b)),
    Expression("fma2(a, b, c)", "pair", "pair"),
    Expression("add2(mul2(a, b), c)", "pair", "pair"),
]
BITS = [
    *(Expression(f"lop3<{table}>(a, b, c)", "word", "word", reference=_words(f)) for table, f in (
        (0xEA, lambda a, b, c: a & b | c), (0x96, lambda a, b, c: a ^ b ^ c), (0xCA, lambda a, b, c: a & b | ~a & c),
        (0x17, lambda a, b, c: ~(a & b | b & c | a & c)), (0x01, lambda a, b, c: ~(a | b | c)),
    )),
    Expression("max_u16x2(a, b)", "word", "word", reference=_max_u16x2),
    Expression("dequantised(a, 0)", "long", "word", reference=_int4(0)),
    Expression("dequantised(a, 1)", "long", "word", reference=_int4(1)),
    Expression("__popc(a)", "signed", "word", reference=lambda a, b, c: np.bitwise_count(a).astype(np.uint32)),
    Expression("__clz(a)", "signed", "word"),
    Expression("__ffs(a)", "signed", "word"),
    Expression("__brev(a)", "word", "word"),
    Expression("__byte_perm(a, b, c)", "word", "word", reference=_byte_perm),
    Expression("__funnelshift_r(a, b, c)", "word", "word"),
    Expression("__funnelshift_l(a, b, c)", "word", "word"),
    Expression("__umulhi(a, b)", "word", "word", reference=lambda a, b, c: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)),
    Expression("min(a, b)", "word", "word", reference=lambda a, b, c: np.minimum(a, b)),
    Expression("max(a, int(b))", "word", "word", reference=lambda a, b, c: np.maximum(a, b)),
    Expression("float(a)", "float", "word", reference=lambda a, b, c: a.astype(np.float32).view(np.uint32)),
    Expression("float(int(a))", "float", "word", reference=lambda a, b, c: a.view(np.int32).astype(np.float32).view(np.uint32)),
]  # fmt: skip
ARITHMETIC = [
    Expression("a + b", "float", "float", reference=_floats(lambda a, b, c: a + b)),
    Expression("a * b", "float", "float", reference=_floats(lambda a, b, c: a * b)),
    Expression("a / b", "float", "float", reference=_floats(lambda a, b, c: a / b)),
    Expression("fmaf(a, b, c)", "float", "float"),
    Expression("sqrtf(a)", "float", "float", reference=_floats(lambda a, b, c: np.sqrt(a))),
    Expression("fmaxf(a, b)", "float", "float"),
    Expression("fminf(a, b)", "float", "float"),
    Expression("max(a, b)", "float", "float"),
    Expression("min(a, b)", "float", "float"),
    Expression("__saturatef(a)", "float", "float"),
    Expression("__frcp_rn(a)", "float", "float", reference=_floats(lambda a, b, c: np.float32(1) / a)),
    Expression("__frsqrt_rn(a)", "float", "float"),
    *(Expression(f"{f}(a)", "float", "float", reference=_floats(lambda a, b, c, g=g: g(a))) for f, g in (
        ("floorf", np.floor), ("ceilf", np.ceil), ("rintf", np.rint), ("truncf", np.trunc))),
]  # fmt: skip
APPROXIMATE = [
    Expression(
        "ex2(a)",
        "float",
        (-140.0, 20.0),
        2,
        _floats(lambda a, b, c: np.where(a < -126, 0, np.exp2(a.astype(np.float64)))),
    ),
    Expression("ex2(a)", "float", "float", 2),
    Expression("expf(a)", "float", (-80.0, 80.0), 2, _floats(lambda a, b, c: np.exp(a.astype(np.float64)))),
    Expression("__expf(a)", "float", (-20.0, 20.0), 40),
    Expression("exp2f(a)", "float", (-120.0, 120.0), 2, _floats(lambda a, b, c: np.exp2(a.astype(np.float64)))),
    Expression("logf(a)", "float", (1e-6, 1e6), 2, _floats(lambda a, b, c: np.log(a.astype(np.float64)))),
    Expression("log2f(a)", "float", (1e-6, 1e6), 2, _floats(lambda a, b, c: np.log2(a.astype(np.float64)))),
    Expression("rsqrtf(a)", "float", (1e-6, 1e6), 2, _floats(lambda a, b, c: 1 / np.sqrt(a.astype(np.float64)))),
    Expression("sinf(a)", "float", (-100.0, 100.0), 2),
    Expression("cosf(a)", "float", (-100.0, 100.0), 2),
    Expression("tanhf(a)", "float", (-9.0, 9.0), 3),
    Expression("log1pf(a)", "float", (-0.9, 100.0), 2),
    Expression("expm1f(a)", "float", (-10.0, 10.0), 2),
]
EXPRESSIONS = [*CONVERSIONS, *PAIRS, *BITS, *ARITHMETIC, *APPROXIMATE]

SPECIAL_FLOATS = np.array(
    [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0x7F800000,
     0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x33800000, 0x33000001, 0x00008000, 0x00018000, 0x40000000, 0x4F000000, 0x3F000000],
    np.uint32,
)  # fmt: skip
SPECIAL_BF16 = np.array(
    [0, 1, 0x7F, 0x80, 0x3F80, 0x3F81, 0x4000, 0x7F7F, 0x7F80, 0x7FC0, 0x7F81, 0x7FFF, 0x300, 0x2000], np.uint32
)


def operands(e: Expression) -> list[Array]:
    """a, b, c as words: random bits, values of ordinary size, and every pair of special values."""
    rng = np.random.default_rng(7)
    if not isinstance(e.operands, str):
        return [rng.uniform(*e.operands, COUNT).astype(np.float32).view(np.uint32) for _ in range(3)]
    values = [rng.integers(0, 1 << 32, COUNT, dtype=np.uint32) for _ in range(3)]
    quarter = COUNT // 4
    for k, v in enumerate(values):
        if e.operands == "float":
            ordinary = rng.standard_normal(quarter) * 2.0 ** rng.integers(-30, 20, quarter)
            v[:quarter] = ordinary.astype(np.float32).view(np.uint32)
        if e.operands == "pair":
            tiny = np.where(np.arange(quarter) % 2, 1.0, 1e-12 if k == 2 else 1.0)[:, None]  # a tiny c: ties of a b
            v[:quarter] = pair_words((rng.standard_normal((quarter, 2)) * tiny).astype(np.float32))
    special = {"float": SPECIAL_FLOATS, "pair": SPECIAL_BF16}.get(e.operands)
    if special is None:
        values[2][:quarter] &= np.uint32(63)
        return values
    sign = np.uint32(0x80000000 if e.operands == "float" else 0x8000)
    special = np.concatenate([special, special | sign])
    first, second = np.repeat(special, len(special)), np.tile(special, len(special))
    for v, x in zip(values, (first, second, rng.permutation(first)), strict=True):
        v[-len(first) :] = x if e.operands == "float" else x | x << np.uint32(16)
    return values


PROLOGUE = """#include "ddtree/prims.cuh"
using namespace ddtree;
DEVICE u64 dequantised(u32 nibbles, int half) {
    bf16x2 out[4];
    int4x8_to_bf16(nibbles, out);
    return u64(bitcast<u32>(out[2 * half + 1])) << 32 | bitcast<u32>(out[2 * half]);
}
template <class T> DEVICE u64 bits(T x) { u64 r = 0; memcpy(&r, &x, sizeof x); return r; }
"""


def source() -> tuple[str, list[str]]:
    """A kernel for each expression, and their names in order."""
    text = PROLOGUE
    for i, e in enumerate(EXPRESSIONS):
        operand, result = C_TYPES[e.operand_type], C_TYPES[e.result]
        loads = ", ".join(f"{x} = bitcast<{operand}>({x.upper()}[i])" for x in "abc")
        text += (
            f"KERNEL(128) expression{i}(const u32* A, const u32* B, const u32* C, u64* out) {{\n"
            f"    const int i = blockIdx.x * 128 + threadIdx.x;\n"
            f"    {operand} {loads};\n"
            f"    const {result} value = {e.text};\n"
            f"    out[i] = bits(value);\n}}\n"
        )
    return text, [f"expression{i}" for i in range(len(EXPRESSIONS))]


def ulp_distance(x: Array, y: Array) -> int:
    """Largest distance of finite float32 words, in units of the last place; NaN and infinities must agree."""
    fx, fy = as_float(x), as_float(y)
    finite = np.isfinite(fx) & np.isfinite(fy)
    same_kind = (np.isnan(fx) & np.isnan(fy)) | (fx == fy) | finite
    if not same_kind.all():
        return 1 << 32
    ordered = [
        np.where(v.view(np.int32) < 0, -(v.view(np.int32) & 0x7FFFFFFF).astype(np.int64), v.view(np.int32))
        for v in (x, y)
    ]
    return int(np.abs(ordered[0] - ordered[1])[finite].max(initial=0))
