"""Conversions, arithmetic, bit functions and warp collectives on the emulator against NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.emulator import Module, unsupported_reason
from tests.emulator import expressions as ex
from tests.emulator import warp_expressions as warp

if reason := unsupported_reason():
    pytest.skip(reason, allow_module_level=True)


@cache
def module() -> Module:
    return Module(*ex.source())


@pytest.mark.parametrize(
    "index", range(len(ex.EXPRESSIONS)), ids=lambda i: f"{ex.EXPRESSIONS[i].text} {ex.EXPRESSIONS[i].operands}"
)
@np.errstate(all="ignore")
def test_expression_equals_numpy(index: int) -> None:
    e = ex.EXPRESSIONS[index]
    a, b, c = ex.operands(e)
    out = np.zeros(ex.COUNT, np.uint64)
    module().launch(f"expression{index}", ex.COUNT // 128, 128, [a, b, c, out])
    if e.reference is None:
        assert len(np.unique(out)) > 1, "without a NumPy reference: at least it computes; a GPU is the judge"
        return
    want = e.reference(a, b, c)
    if e.ulps:
        assert ex.ulp_distance(out.astype(np.uint32), want.astype(np.uint32)) <= e.ulps
    else:
        got, want = out, want.astype(np.uint64)
        if e.result == "float":  # the emulator may keep a NaN's payload
            got, want = (ex.canonical(ex.as_float(x.astype(np.uint32))) for x in (got, want))
        np.testing.assert_array_equal(got, want)


def test_fma2_rounds_once() -> None:
    """a b + c where rounding the product first, or the sum twice, gives another bf16."""
    index = next(i for i, e in enumerate(ex.EXPRESSIONS) if e.text == "fma2(a, b, c)")
    a, b, c = ex.operands(ex.EXPRESSIONS[index])
    out = np.zeros(ex.COUNT, np.uint64)
    module().launch(f"expression{index}", ex.COUNT // 128, 128, [a, b, c, out])
    got = ex.halves(out.astype(np.uint32)).reshape(-1)
    with np.errstate(all="ignore"):
        x, y, z = (ex.halves(v).reshape(-1).astype(np.longdouble) for v in (a, b, c))  # 64 bits: a tie stays a tie
        exact = x * y + z
        finite = np.isfinite(exact) & (np.abs(exact) > 2.0**-120) & (np.abs(exact) < 2.0**120)
        error = np.abs(got[finite] - exact[finite])
        half_step = np.exp2(np.floor(np.log2(np.abs(exact[finite]))) - 8)
    assert finite.sum() > 4000
    assert (error <= half_step * (1 + np.longdouble(2.0**-40))).all()


def test_warp_collectives_equal_numpy() -> None:
    table = warp.table()
    words, longs = warp.inputs()
    out = np.zeros((len(table), warp.THREADS), np.uint64)
    Module(warp.source(), ["warp_expressions"]).launch("warp_expressions", 1, warp.THREADS, [words, longs, out])
    for got, (text, want) in zip(out, table, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=text)
