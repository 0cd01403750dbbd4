"""The wrappers compile for both targets without any CUDA header, and no PTX stands outside of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.emulator import expressions, warp_expressions
from tests.emulator.build import KERNEL_INCLUDE

nvrtc = pytest.importorskip("tests.emulator.nvrtc", reason="needs cuda-python and NVRTC", exc_type=ImportError)

KERNELS = Path(__file__).parent / "kernels"
TARGETS = ("sm_90a", "sm_120f")


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", ["every_primitive", "primitives"])
def test_kernels_compile(name: str, arch: str) -> None:
    cubin = nvrtc.compile_cubin((KERNELS / f"{name}.cu").read_text(), arch)
    assert cubin[:4] == b"\x7fELF"
    assert b"__cuda_syscall" not in cubin, (
        "a bulk copy in its shared::cluster form costs gigabytes of context on sm_120"
    )


@pytest.mark.parametrize("arch", TARGETS)
def test_expressions_compile(arch: str) -> None:
    for text in (expressions.source()[0], warp_expressions.source()):
        assert nvrtc.compile_cubin(text, arch)[:4] == b"\x7fELF"


def test_ptx_stands_in_the_primitives_only() -> None:
    others = [p for p in KERNEL_INCLUDE.rglob("*.cuh") if p.parent.name != "prims"]
    assert others
    assert [p.name for p in others if re.search(r"\basm\b", p.read_text())] == []


def test_every_wrapper_is_compiled_by_the_test() -> None:
    """every_primitive.cu calls each function that the parts of prims.cuh define."""
    text = (KERNELS / "every_primitive.cu").read_text()
    defined = set()
    for part in (KERNEL_INCLUDE / "ddtree" / "prims").glob("*.cuh"):
        defined |= set(re.findall(r"^PRIM [\w ]+?[ *](\w+)\(|^LDMATRIX\((\w+)", part.read_text(), re.M))
    names = {a or b for a, b in defined} - {"name"}
    assert len(names) > 40
    assert {n for n in names if not re.search(rf"\b{n}\b", text)} <= {"bitcast", "make_bf16x2", "pack_bf16", "warp_sum"}
