"""Launching: arguments, limits, guarded memory, the compile cache."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulator import CompilerError, KernelError, Module, bf16, guarded, poison_like, unsupported_reason
from tests.emulator.build import cache_folder
from tests.emulator.line_table import source_line
from tests.emulator.memory import is_guarded

if reason := unsupported_reason():
    pytest.skip(reason, allow_module_level=True)

SOURCE = """
#include "ddtree/prims.cuh"
struct Pair { int x, y; };
KERNEL(64) add(const float* a, float* b, int n, float s) { if (int(threadIdx.x) < n) b[threadIdx.x] += a[threadIdx.x] * s; }
KERNEL(64) two(Pair p, short h, u64 big, int* out) { out[0] = p.x + p.y + h; out[1] = int(big >> 32); }
KERNEL(64) dynamic(int* out) { DYN_SMEM(smem); out[threadIdx.x] = smem[threadIdx.x * 4]; }
KERNEL(64) arrays(int* out) {
    SHARED_ARRAY(int, a, 5);
    SHARED_ARRAY(float, b, 64);
    a[0] = 1; b[0] = 2; out[0] = 0;
}
"""


@cache
def module() -> Module:
    return Module(SOURCE, ["add", "two", "dynamic", "arrays"])


def test_arrays_are_written_in_place() -> None:
    a, b = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    module().launch("add", 1, 64, [a, b, 64, 2.0])
    np.testing.assert_array_equal(b, 1 + 2 * a)


def test_a_plain_array_is_guarded_during_the_launch() -> None:
    with pytest.raises(KernelError, match="0 bytes past the end of argument 0"):
        module().launch("add", 1, 64, [np.zeros(32, np.float32), np.zeros(64, np.float32), 64, 2.0])


def test_one_array_passed_twice_is_one_memory() -> None:
    a = np.ones(64, np.float32)
    module().launch("add", 1, 64, [a, a, 64, 2.0])
    assert (a == 3).all()


def test_writing_to_a_read_only_array_is_an_error() -> None:
    b = np.ones(64, np.float32)
    b.flags.writeable = False
    with pytest.raises(ValueError, match="wrote to a read-only array"):
        module().launch("add", 1, 64, [np.ones(64, np.float32), b, 64, 2.0])


@pytest.mark.parametrize("pair", [
    np.array([(3, 4)], np.dtype([("x", "i4"), ("y", "i4")]))[0],
    np.array([3, 4], np.int32).tobytes(),
    type("Pair", (ctypes.Structure,), {"_fields_": [("x", ctypes.c_int), ("y", ctypes.c_int)]})(3, 4),
], ids=["numpy", "bytes", "ctypes"])  # fmt: skip
def test_structs(pair: Any) -> None:
    out = np.zeros(2, np.int32)
    module().launch("two", 1, 1, [pair, np.int16(-5), np.uint64(7 << 32), out])
    assert out.tolist() == [2, 7]


A64 = np.zeros(64, np.float32)


@pytest.mark.parametrize(("name", "args", "message"), [
    ("add", [A64, A64, 64], r"add takes 4 arguments, got 3"),
    ("add", [A64, A64, 64.0, 2.0], r"add, argument 2 \(signed integer, 4 bytes\): got the float 64\.0"),
    ("add", [A64, A64, 64, 2], r"argument 3 \(floating-point, 4 bytes\): got the integer 2"),
    ("add", [A64, A64, 1 << 31, 2.0], r"argument 2 .*: 2147483648 does not fit"),
    ("add", [A64, A64, np.int64(64), 2.0], r"argument 2 .*: got 8 bytes"),
    ("add", [A64, A64, 64, np.float64(2)], r"argument 3 .*: got 8 bytes"),
    ("add", [A64, 64, 64, A64], r"argument 3 .*: got an array"),
    ("add", [A64[::2], A64, 64, 2.0], r"argument 0 .*: the array of shape \(32,\) is not contiguous"),
    ("add", ["text", A64, 64, 2.0], r"argument 0 .*: cannot pass a str"),
    ("two", [b"1234", 1, 1, A64], r"argument 0 \(struct, 8 bytes\): got 4 bytes"),
    ("nothing", [], r"no kernel 'nothing': this module has add, two, dynamic"),
])  # fmt: skip
def test_wrong_arguments_are_refused(name: str, args: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module().launch(name, 1, 64, args)


@pytest.mark.parametrize(("grid", "block", "smem", "message"), [
    (1, 65, 0, r"dynamic, block \(65, 1, 1\): 65 threads, its launch bounds say 64"),
    (0, 64, 0, r"grid \(0,\): expected one to three positive extents"),
    ((1, 1, 1, 1), 64, 0, r"grid \(1, 1, 1, 1\): expected"),
    (1, 64, 101_377, r"101377 bytes of dynamic shared memory, at most 101376"),
])  # fmt: skip
def test_wrong_launches_are_refused(grid: Any, block: Any, smem: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module().launch("dynamic", grid, block, [np.zeros(64, np.int32)], smem)


def test_the_whole_of_shared_memory_can_be_used_and_no_more() -> None:
    out = np.zeros(64, np.int32)
    module().launch("dynamic", 1, 64, [out], 101_376)
    assert (out == 255).all()
    stats = module().launch("arrays", 1, 64, [out], 101_376 - 288)
    assert stats.static_shared == 32 + 256
    with pytest.raises(KernelError, match="288 static \\+ 101089 dynamic bytes exceed 101376"):
        module().launch("arrays", 1, 64, [out], 101_376 - 287)


def test_threads_of_python_take_turns() -> None:
    def work(seed: int) -> None:
        a, b = np.full(64, seed, np.float32), np.zeros(64, np.float32)
        for _ in range(20):
            module().launch("add", 4, 64, [a, b, 64, 1.0])
        results[seed] = b

    results: dict[int, Any] = {}
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all((results[seed] == 80 * seed).all() for seed in range(4))


# ---- guarded memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (1,), (5, 7), (4096,), (1, 4097)])
@pytest.mark.parametrize("low", [False, True])
def test_guarded_is_a_writable_aligned_copy(shape: tuple[int, ...], low: bool) -> None:
    source = bf16(np.random.default_rng(0).standard_normal(shape))
    copy = guarded(source, low=low)
    assert copy.shape == shape and copy.dtype == source.dtype and copy.ctypes.data % 16 == 0
    assert copy.tobytes() == source.tobytes() and is_guarded(copy) and not is_guarded(source)
    copy[...] = 0


def test_guarded_memory_is_given_back() -> None:
    def mapped_kb() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmSize:")[1].split()[0])

    big = np.zeros(8 << 20, np.uint8)
    guarded(big)
    gc.collect()
    before = mapped_kb()
    for _ in range(50):
        view = guarded(big)[10:]
        del view
    assert mapped_kb() - before < 64 << 10


def test_poison_like() -> None:
    assert np.isnan(poison_like(bf16(np.zeros((3, 5)))).astype(np.float32)).all()
    assert (poison_like(np.zeros(3, np.int32)) == -1).all()


# ---- compiling ------------------------------------------------------------------------------------------------------------


def test_a_compile_error_has_the_compilers_text_and_the_line() -> None:
    with pytest.raises(CompilerError, match=r"kernel\.cu:2:.*\n?.*undeclared_name"):
        Module('#include "ddtree/prims.cuh"\nKERNEL(1) k(int* p) { *p = undeclared_name; }\n', ["k"])


def test_line_directives_are_followed() -> None:
    text = '#include "ddtree/prims.cuh"\n#line 40 "model.yaml"\nKERNEL(1) k(int* p) {\n __syncthreads();\n __trap(); }'
    with pytest.raises(KernelError, match=r"^model\.yaml:42: .*__trap"):
        Module(text, ["k"]).launch("k", 1, 1, [np.zeros(1, np.int32)])


def test_plain_shared_is_refused_at_compile_time() -> None:
    text = '#include "ddtree/prims.cuh"\nKERNEL(1) k(int* p) { __shared__ int a[4]; *p = a[0]; }'
    with pytest.raises(CompilerError, match="shared memory only through DYN_SMEM or SHARED_ARRAY"):
        Module(text, ["k"])


def test_an_included_header_is_part_of_the_key(tmp_path: Path) -> None:
    text = '#include "ddtree/prims.cuh"\n#include "value.cuh"\nKERNEL(1) k(int* p) { *p = VALUE; }'
    for value in (1, 2):
        (tmp_path / "value.cuh").write_text(f"#define VALUE {value}\n")
        out = np.zeros(1, np.int32)
        Module(text, ["k"], include_dirs=[tmp_path]).launch("k", 1, 1, [out])
        assert out[0] == value


def test_processes_that_build_at_once_all_get_the_library(tmp_path: Path) -> None:
    program = (
        "import numpy as np\nfrom tests.emulator import Module\n"
        'm = Module(\'#include "ddtree/prims.cuh"\\nKERNEL(1) k(int* p) { *p = 7; }\', ["k"])\n'
        'out = np.zeros(1, np.int32)\nm.launch("k", 1, 1, [out])\nassert out[0] == 7\n'
    )
    folder = tmp_path / "cache"
    folder.mkdir()
    for library in cache_folder().glob("libemulator-*.so"):  # the runtime takes seconds to compile
        (folder / library.name).symlink_to(library)
    environment = {**os.environ, "DDTREE_EMULATOR_CACHE": str(folder)}
    root = Path(__file__).resolve().parents[2]
    running = [subprocess.Popen([sys.executable, "-c", program], cwd=root, env=environment) for _ in range(4)]
    assert [p.wait() for p in running] == [0] * 4
    assert len(list(folder.glob("kernel-*.so"))) == 1 and not list(folder.glob("build-*"))


def test_unknown_addresses_have_no_line() -> None:
    assert source_line(module().library, 1 << 40) is None
