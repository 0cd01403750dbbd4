"""Cubin inspection: kernels, registers, spills, forbidden symbols, SASS."""

import functools
import re

import pytest

from ddtree.errors import CompileError
from ddtree.runtime import nvrtc
from ddtree.runtime.compiler import KernelSource
from ddtree.runtime.cubin import disassemble, inspect, ptxas_usage
from ddtree.templates.target import TARGETS
from tests.compile.sources import MMA, SPILLING, bulk_copy, scale

BOTH = pytest.mark.parametrize("target", TARGETS)


@functools.cache
def compiled(source: KernelSource, target: str) -> tuple[bytes, str]:
    unit = nvrtc.Unit(f"{source.name}.cu", source.source, {}, False, target)
    return nvrtc.compile_unit(unit, nvrtc.CudaHeaders((), ""))


@BOTH
def test_elf_and_ptxas_agree_on_kernels_and_registers(target: str) -> None:
    cubin, log = compiled(SPILLING, target)
    usage = ptxas_usage(log)
    assert inspect(cubin).registers == {"spilling": usage.registers} and usage.registers == 64


@BOTH
def test_spills_are_counted_and_stand_in_the_sass(target: str) -> None:
    cubin, log = compiled(SPILLING, target)
    usage, sass = ptxas_usage(log), disassemble(cubin)
    assert usage.spill_bytes > 0 and usage.stack_bytes > 0
    assert sass is None or ("STL" in sass and "LDL" in sass)


@BOTH
def test_a_clean_kernel_has_no_local_memory(target: str) -> None:
    cubin, log = compiled(scale(2), target)
    usage, sass = ptxas_usage(log), disassemble(cubin)
    assert (usage.spill_bytes, usage.stack_bytes, usage.smem_bytes) == (0, 0, 0) and usage.registers > 0
    assert sass is None or not re.search(r"\b(STL|LDL)\b", sass)


@BOTH
def test_sass_shows_the_tensor_core_instruction(target: str) -> None:
    sass = disassemble(compiled(MMA, target)[0])
    if sass is None:
        pytest.skip("nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)")
    assert "HMMA.16816.F32.BF16" in sass


def test_two_kernels_and_a_called_function_are_summed_up() -> None:
    text = """__device__ __noinline__ float f(float x) { float a[50]; for (int i = 0; i < 50; ++i) a[i] = x + i;
      return a[(int)x % 50]; }
    extern "C" __global__ void one(float* x) { x[0] = f(x[0]); }
    extern "C" __global__ void two(float* x) { __shared__ float s[256]; s[threadIdx.x] = x[1]; __syncthreads();
      x[2] = s[threadIdx.x + 1]; }"""
    cubin, log = compiled(KernelSource("pair", "pair", text, 0), "compute_120f")
    usage = ptxas_usage(log)
    assert usage.kernels == ("one", "two") and set(inspect(cubin).registers) == {"one", "two"}
    assert usage.smem_bytes == 1024 and usage.stack_bytes == 200 and usage.spill_bytes == 0


def test_a_bulk_copy_to_the_cluster_is_a_forbidden_driver_call_on_sm120() -> None:
    forbidden = {
        (space, target): inspect(compiled(bulk_copy(space), target)[0]).forbidden
        for space in ("cta", "cluster")
        for target in TARGETS
    }
    assert forbidden.pop(("cluster", "compute_120f")) == ("__cuda_syscall_cp_async_bulk_unicast",)
    assert set(forbidden.values()) == {()}


@pytest.mark.parametrize("length", [0, 3, 20, 63, 64, 700, -1])
def test_a_truncated_cubin_is_refused(length: int) -> None:
    with pytest.raises(CompileError, match="not a cubin"):
        inspect(compiled(scale(2), "compute_120f")[0][:length])


def test_another_machines_elf_is_refused() -> None:
    cubin = bytearray(compiled(scale(2), "compute_120f")[0])
    cubin[18:20] = (62).to_bytes(2, "little")  # x86-64
    with pytest.raises(CompileError, match="no CUDA ELF header"):
        inspect(bytes(cubin))
