"""Every primitive on the emulator and on a GPU, bit for bit. Run it after every change of prims.cuh: pytest -m gpu."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.emulator import Module, bf16, unsupported_reason
from tests.emulator import expressions as ex
from tests.emulator import warp_expressions as warp
from tests.emulator.cases import CASES, NAMES, SOURCE, fragments

pytestmark = pytest.mark.gpu
gpu = pytest.importorskip("tests.emulator.gpu", reason="needs cuda-python", exc_type=ImportError)
if reason := unsupported_reason():
    pytest.skip(reason, allow_module_level=True)


@cache
def both(which: str) -> tuple[Module, Any]:
    """A source's emulated and GPU modules."""
    if which == "primitives":
        source, names = SOURCE, NAMES
    elif which == "expressions":
        source, names = ex.source()
    else:
        source, names = warp.source(), ["warp_expressions"]
    emulated = Module(source, names)
    return emulated, gpu.GpuModule(source, emulated)


@pytest.mark.parametrize("name", CASES)
def test_primitive(name: str) -> None:
    case = CASES[name]
    args = case.fresh_args()
    both("primitives")[1].launch(case.kernel, case.grid, case.block, args, case.smem, cooperative=case.cooperative)
    for position, want in zip(case.outputs, case.want, strict=True):
        np.testing.assert_array_equal(args[position].reshape(want.shape), want)


@pytest.mark.parametrize(
    "index", range(len(ex.EXPRESSIONS)), ids=lambda i: f"{ex.EXPRESSIONS[i].text} {ex.EXPRESSIONS[i].operands}"
)
def test_expression(index: int) -> None:
    e = ex.EXPRESSIONS[index]
    outs = [np.zeros(ex.COUNT, np.uint64) for _ in range(2)]
    for module, out in zip(both("expressions"), outs, strict=True):
        module.launch(f"expression{index}", ex.COUNT // 128, 128, [*ex.operands(e), out])
    got, want = outs
    if e.result == "float":  # NaN payloads: the GPU has one, x86 keeps the operand's
        got, want = (ex.canonical(ex.as_float(x.astype(np.uint32))) for x in outs)
    if e.ulps:
        assert ex.ulp_distance(got, want) <= e.ulps
    else:
        np.testing.assert_array_equal(got, want)


def test_warp_collectives() -> None:
    table, (words, longs) = warp.table(), warp.inputs()
    out = np.zeros((len(table), warp.THREADS), np.uint64)
    both("warp")[1].launch("warp_expressions", 1, warp.THREADS, [words, longs, out])
    for got, (text, want) in zip(out, table, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=text)


def mma_operands(kind: str, count: int = 256) -> list[np.ndarray[Any, Any]]:
    a: Any
    b: Any
    c: Any
    rng = np.random.default_rng(5)
    shapes = (count, 16, 16), (count, 16, 8), (count, 16, 8)
    a, b, c = (rng.standard_normal(s) for s in shapes)
    if kind == "wide exponents":
        a, b, c = (x * 2.0 ** rng.integers(-e, e + 1, x.shape) for x, e in ((a, 8), (b, 8), (c, 16)))
    elif kind == "subnormal results":
        a, b, c = (rng.integers(-8, 9, s) * 2.0**e for s, e in zip(shapes, (-70, -75, -145), strict=True))
    elif kind == "subnormal operands":
        a, b, c = rng.integers(-8, 9, shapes[0]) * 2.0**-132, rng.integers(-8, 9, shapes[1]) * 2.0**100, c * 0
    elif kind == "infinities and NaN":
        values, odds = [1, -1, 0, 2, np.inf, -np.inf, np.nan], [0.3, 0.3, 0.2, 0.14, 0.02, 0.02, 0.02]
        a, b, c = (rng.choice(values, s, p=odds) for s in shapes)
    return [*fragments(bf16(a), bf16(b), c), np.zeros((count, 32, 4), np.float32)]


@pytest.mark.parametrize(
    "kind", ["random", "wide exponents", "subnormal results", "subnormal operands", "infinities and NaN"]
)
def test_mma(kind: str) -> None:
    emulated, device = both("primitives")
    exact, fast, real = (mma_operands(kind) for _ in range(3))
    emulated.launch("mma", 256, 32, exact, exact_mma=True)
    emulated.launch("mma", 256, 32, fast)
    device.launch("mma", 256, 32, real)
    differing = (fast[3].view(np.uint32) != real[3].view(np.uint32)).mean()
    print(f"mma, {kind}: default arithmetic differs in {differing:.1%} of the results, exact arithmetic in "
          f"{(exact[3].view(np.uint32) != real[3].view(np.uint32)).sum()} results")  # fmt: skip
    np.testing.assert_array_equal(exact[3].view(np.uint32), real[3].view(np.uint32))
    finite = np.isfinite(real[3])
    np.testing.assert_array_equal(np.isfinite(fast[3]), finite)
    worst = np.abs(fast[3] - real[3])[finite].max() / np.abs(real[3][finite]).max()
    print(f"mma, {kind}: default arithmetic is off by at most {worst:.1g} of the largest result")
    assert worst <= 1e-6
