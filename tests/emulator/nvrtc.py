"""NVRTC without a GPU: does a kernel text compile for a target, and to what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuda.bindings import nvrtc

from tests.emulator.build import KERNEL_INCLUDE


def compile_cubin(source: str, arch: str, *options: str) -> bytes:
    """The cubin of `source` for `arch` (sm_90a, sm_120f); RuntimeError with NVRTC's log when it does not compile."""
    return _compile(source, arch, options, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)


def compile_ptx(source: str, arch: str, *options: str) -> str:
    """The PTX on the way to that cubin."""
    return _compile(source, arch, options, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).decode()


def _compile(
    source: str, arch: str, options: Sequence[str], size_of: Callable[..., Any], fetch: Callable[..., Any]
) -> bytes:
    (error, program) = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, error
    flags = [f"--gpu-architecture={arch}", "--std=c++17", f"-I{KERNEL_INCLUDE}", *options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        size = nvrtc.nvrtcGetProgramLogSize(program)[1]
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode(errors="replace"))
    made = b" " * size_of(program)[1]
    fetch(program, made)
    nvrtc.nvrtcDestroyProgram(program)
    return made
