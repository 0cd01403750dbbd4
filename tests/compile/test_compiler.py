"""compile_all: results, refusals, the cache in use, the report."""

from pathlib import Path

import pytest

from ddtree.errors import CompileError, UsageError
from ddtree.runtime import compiler, nvrtc
from ddtree.runtime.cache import CompileCache
from ddtree.runtime.compiler import CompiledKernel, KernelSource, compile_all, report
from ddtree.runtime.headers import HeaderReader
from ddtree.templates.target import SHARED_LIMIT, TARGETS
from tests.compile.sources import SPILLING, bulk_copy, scale

BOTH = tuple(TARGETS)


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache(tmp_path / "cache")


def test_kernels_come_back_in_order_and_warm_from_the_cache(cache: CompileCache) -> None:
    sources, steps = [scale(4), scale(2), scale(3)], []
    cold = compile_all(sources, BOTH, cache=cache, progress=lambda *step: steps.append(step))
    assert [(k.name, k.target) for k in cold] == [(s.name, t) for s in sources for t in BOTH]
    assert all(k.cubin[:4] == b"\x7fELF" and k.symbols == (k.name,) and k.registers > 0 for k in cold)
    assert [(done, total) for done, total, _ in steps] == [(n, 6) for n in range(1, 7)]
    assert {k for _, _, k in steps} == set(cold)
    warm = compile_all(sources, BOTH, cache=cache)
    assert [k.cached for k in cold] == [False] * 6 and [k.cached for k in warm] == [True] * 6
    assert [k.cubin for k in warm] == [k.cubin for k in cold]


def test_a_damaged_cubin_is_compiled_again(cache: CompileCache) -> None:
    (good,) = compile_all([scale(2)], ["sm_90a"], cache=cache)
    (path,) = cache.root.glob("kernels/*/*/kernel.cubin")
    path.write_bytes(good.cubin[:100])
    (again,) = compile_all([scale(2)], ["sm_90a"], cache=cache)
    assert not again.cached and again.cubin == good.cubin == path.read_bytes()


def test_the_same_text_under_two_names_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    units: list[nvrtc.Unit] = []
    compile_unit = nvrtc.compile_unit
    monkeypatch.setattr(
        nvrtc, "compile_unit", lambda unit, headers: (units.append(unit), compile_unit(unit, headers))[1]
    )
    one, two = compile_all([scale(2, name="one"), scale(2, name="two", dynamic_smem=64)], ["sm_90a"])
    assert len(units) == 1 and one.cubin == two.cubin and two.smem_bytes == one.smem_bytes + 64


def test_two_texts_under_one_name_are_refused() -> None:
    with pytest.raises(CompileError, match="two different kernels are named same"):
        compile_all([scale(2, name="same"), scale(3, name="same")], ["sm_90a"])


@pytest.mark.parametrize("change", ["source", "direct header", "indirect header", "nvrtc", "options", "target"])
def test_whatever_decides_the_code_changes_the_key(
    change: str, cache: CompileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ddtree").mkdir()
    direct, indirect = tmp_path / "ddtree/direct.cuh", tmp_path / "ddtree/indirect.cuh"
    direct.write_text('#include "ddtree/indirect.cuh"\n')
    indirect.write_text("constexpr float FACTOR = 2.0f;\n")
    monkeypatch.setattr(compiler, "HeaderReader", lambda: HeaderReader(tmp_path))
    text = '#include "ddtree/direct.cuh"\nextern "C" __global__ void k(float* x) { *x *= FACTOR; }\n'

    def cached(source: str = text, target: str = "sm_90a") -> bool:
        return compile_all([KernelSource("k", "k", source, 0)], [target], cache=cache)[0].cached

    assert [cached(), cached()] == [False, True]
    if change == "source":
        assert not cached(source=text + "\n")
    elif change == "target":
        assert not cached(target="compute_120f")
    elif change.endswith("header"):
        header = direct if change == "direct header" else indirect
        header.write_text(header.read_text() + "// changed\n")
        assert not cached()
    elif change == "nvrtc":
        monkeypatch.setattr(nvrtc, "identity", lambda: "13.9-1")
        assert not cached()
    else:
        options = (*nvrtc.options("sm_90a"), "-DEXTRA")
        monkeypatch.setattr(nvrtc, "options", lambda target: options)
        assert not cached()


def test_a_header_change_changes_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: CompileCache) -> None:
    (tmp_path / "ddtree").mkdir()
    header = tmp_path / "ddtree/factor.cuh"
    monkeypatch.setattr(compiler, "HeaderReader", lambda: HeaderReader(tmp_path))
    text = '#include "ddtree/factor.cuh"\nextern "C" __global__ void k(float* x) { *x *= FACTOR; }\n'
    cubins = []
    for factor in (2, 5, 2):
        header.write_text(f"constexpr float FACTOR = {factor}.0f;\n")
        cubins.append(compile_all([KernelSource("k", "k", text, 0)], ["sm_90a"], cache=cache)[0].cubin)
    assert cubins[0] == cubins[2] != cubins[1]


def test_spills_are_refused_unless_allowed(cache: CompileCache) -> None:
    with pytest.raises(CompileError, match=r"kernel spilling for sm_90a: spills \d+ bytes at 64 registers"):
        compile_all([SPILLING], ["sm_90a"], cache=cache)
    (kernel,) = compile_all([SPILLING], ["sm_90a"], cache=cache, allow_spills=True)
    assert kernel.cached and kernel.spill_bytes > 0 and kernel.stack_bytes > 0


def test_a_forbidden_call_is_refused_also_from_the_cache(cache: CompileCache) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="calls __cuda_syscall_cp_async_bulk_unicast; use shared::cta"):
            compile_all([bulk_copy("cluster")], ["compute_120f"], cache=cache)


def test_shared_memory_is_static_plus_dynamic_and_limited() -> None:
    text = """extern "C" __global__ void k(float* x) { __shared__ float s[1024]; s[threadIdx.x] = *x; __syncthreads();
      *x = s[1023 - threadIdx.x]; }"""
    (kernel,) = compile_all([KernelSource("k", "k", text, SHARED_LIMIT - 4096)], ["compute_120f"])
    assert kernel.smem_bytes == SHARED_LIMIT == 99 * 1024
    with pytest.raises(CompileError, match=r"kernel k for sm_90a: needs 101392 bytes of shared memory, at most 101376"):
        compile_all([KernelSource("k", "k", text, SHARED_LIMIT - 4080)], ["sm_90a"])


def test_an_error_in_one_kernel_ends_the_call(cache: CompileCache) -> None:
    bad = KernelSource("bad", "bad", '#line 7 "m.yaml:blocks.moe"\nextern "C" __global__ void k() { oops(); }\n', 0)
    with pytest.raises(CompileError, match=r"m\.yaml:blocks\.moe\(7\): error"):
        compile_all([scale(2), bad, scale(3)], ["sm_90a"], cache=cache, jobs=1)
    assert not list((cache.root / "staging").iterdir())


def test_sources_are_dumped_before_anything_is_compiled(tmp_path: Path) -> None:
    bad = KernelSource("bad", "bad", "this is not CUDA\n", 0)
    with pytest.raises(CompileError):
        compile_all([scale(2), bad], ["sm_90a"], dump_dir=tmp_path / "out")
    assert {p.name: p.read_text() for p in (tmp_path / "out").iterdir()} == {
        "bad.cu": bad.source,
        "scale_2.cu": scale(2).source,
    }


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "a\n"])
def test_a_name_can_not_leave_the_dump_folder(name: str) -> None:
    with pytest.raises(ValueError, match="file name"):
        KernelSource(name, "op", "", 0)


def test_an_unknown_target_is_refused_first() -> None:
    with pytest.raises(UsageError, match="known targets: compute_120f, sm_90a"):
        compile_all([scale(2)], ["sm_90a", "sm_75"])


def test_report_has_the_columns_of_the_command() -> None:
    kernel = CompiledKernel("n", "op", "sm_90a", b"12345", ("s",), 40, 0, 0, 4096, 256, True, 0.1)
    row = {"name": "n", "op": "op", "target": "sm_90a", "registers": 40, "spill_bytes": 0, "smem_bytes": 4096}
    row |= {"threads": 256, "blocks_per_sm": 6, "cubin_bytes": 5, "cached": True}
    assert report("m", [kernel], 1.23456) == {"model": "m", "target": "sm_90a", "seconds": 1.235, "kernels": [row]}


@pytest.mark.parametrize(
    ("name", "threads", "registers", "smem", "blocks"),
    [
        ("sm_90a", 256, 126, 91_264, 2),  # by shared memory: 228 KB, 1 KB more for each block
        ("sm_90a", 256, 128, 0, 2),  # by registers: 64 K
        ("sm_90a", 1024, 32, 0, 2),  # by threads: 2,048
        ("sm_90a", 32, 16, 0, 32),
        ("compute_120f", 256, 120, 91_264, 1),
        ("compute_120f", 512, 40, 0, 3),  # 1,536 threads
        ("compute_120f", 256, 40, 50_176, 2),
        ("compute_120f", 256, 40, 50_177, 1),
    ],
)
def test_blocks_that_fit_on_a_multiprocessor(name: str, threads: int, registers: int, smem: int, blocks: int) -> None:
    assert TARGETS[name].blocks_per_sm(threads, registers, smem) == blocks
