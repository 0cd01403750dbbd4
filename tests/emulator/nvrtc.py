"""NVRTC without a GPU: does a kernel text compile for a target, and to what."""

from __future__ import annotations

from cuda.bindings import nvrtc

from tests.emulator.build import KERNEL_INCLUDE


def compile_cubin(source: str, arch: str, *options: str) -> bytes:
    """The cubin of `source` for `arch` (sm_90a, sm_120f); RuntimeError with NVRTC's log when it does not compile."""
    (error, program) = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, error
    flags = [f"--gpu-architecture={arch}", "--std=c++17", f"-I{KERNEL_INCLUDE}", *options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        size = nvrtc.nvrtcGetProgramLogSize(program)[1]
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode(errors="replace"))
    size = nvrtc.nvrtcGetCUBINSize(program)[1]
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(program)
    return cubin
