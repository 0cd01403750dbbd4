"""NVRTC: targets, errors at the right place, and versions that don't suffice."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ddtree.errors import CompileError, UsageError
from ddtree.runtime import nvrtc
from ddtree.templates.target import DEFAULT_TARGET, TARGETS
from tests.compile.sources import BF16, scale

NONE = nvrtc.CudaHeaders((), "")


def unit(source: str, target: str = "compute_120f", headers: dict[str, str] | None = None) -> nvrtc.Unit:
    return nvrtc.Unit("op_0123.cu", source, headers or {}, "<cuda" in source, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_gives_machine_code(target: str) -> None:
    cubin, log = nvrtc.compile_unit(unit(scale(2).source, target), NONE)
    assert cubin[:4] == b"\x7fELF" and len(cubin) > 1000
    assert f"'{nvrtc.architecture(target)}'" in log


def test_the_default_target_is_built_as_family_machine_code() -> None:
    assert DEFAULT_TARGET == "compute_120f" and nvrtc.architecture("compute_120f") == "sm_120f"


def test_an_unknown_target_is_answered_with_the_list() -> None:
    with pytest.raises(UsageError, match="unknown target 'sm_120'; known targets: compute_120f, sm_90a"):
        nvrtc.architecture("sm_120")


def test_the_same_text_gives_the_same_bytes() -> None:
    first, again = (nvrtc.compile_unit(unit(scale(3).source), NONE)[0] for _ in range(2))
    assert first == again


def test_an_error_stands_where_line_says() -> None:
    source = '#line 12 "model.yaml:layers.3.moe"\nextern "C" __global__ void k(float* x) { foo = 1; bar = 2; }\n'
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_unit(unit(source), NONE)
    assert str(caught.value) == (
        'op_0123.cu for compute_120f: model.yaml:layers.3.moe(12): error: identifier "foo" is undefined (and 1 more)'
    )
    assert 'identifier "bar" is undefined' in caught.value.__notes__[0]


def test_an_error_in_a_header_names_the_header() -> None:
    headers = {"ddtree/outer.cuh": '#include "ddtree/inner.cuh"\n', "ddtree/inner.cuh": "\nint f() { return oops; }\n"}
    with pytest.raises(CompileError, match=r'ddtree/inner\.cuh\(2\): error: identifier "oops"'):
        nvrtc.compile_unit(unit('#include "ddtree/outer.cuh"\n', headers=headers), NONE)


def test_an_error_of_the_assembler_is_reported() -> None:
    source = 'extern "C" __global__ void k() { asm volatile("foo.bar;"); }\n'
    with pytest.raises(CompileError, match=r"op_0123\.cu for sm_90a: ptxas .*error +: Unknown modifier '\.bar'"):
        nvrtc.compile_unit(unit(source, "sm_90a"), NONE)


def test_cuda_headers_come_out_of_the_library_or_from_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = nvrtc.cuda_headers(tmp_path)
    monkeypatch.setattr(nvrtc, "BUNDLES_HEADERS", (99, 0))
    wheels = nvrtc.cuda_headers(tmp_path)
    assert wheels.options[0].startswith("-I")
    assert (bundled != wheels) is (nvrtc.version() >= (13, 3))
    for headers in {bundled, wheels}:
        assert nvrtc.compile_unit(unit(BF16.source), headers)[0][:4] == b"\x7fELF"


def test_without_any_cuda_headers_the_error_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "BUNDLES_HEADERS", (99, 0))
    monkeypatch.setattr(nvrtc, "_include_folders", lambda major: [])
    with pytest.raises(CompileError, match="pip install nvidia-cuda-runtime"):
        nvrtc.cuda_headers(tmp_path)


def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_binding", lambda: SimpleNamespace(nvrtcVersion=lambda: (0, 12, 8)))
    with pytest.raises(CompileError, match=r"NVRTC 12\.8 is too old for compute_120f: 12\.9 or newer is needed"):
        nvrtc.version.__wrapped__()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[int, int, int]:
        raise RuntimeError("Failure finding libnvrtc.so")

    monkeypatch.setattr(nvrtc, "_binding", lambda: SimpleNamespace(nvrtcVersion=missing))
    with pytest.raises(CompileError, match="pip install nvidia-cuda-nvrtc"):
        nvrtc.version.__wrapped__()


def test_a_missing_binding_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(CompileError, match="pip install cuda-python"):
        nvrtc._binding.__wrapped__()
