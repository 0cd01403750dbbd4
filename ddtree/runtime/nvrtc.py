"""CUDA C++ text -> cubin through NVRTC. Needs no driver and no GPU."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.errors import CompileError
from ddtree.templates.target import DEFAULT_TARGET
from ddtree.templates.target import target as find_target

OLDEST = (12, 9)  # the first NVRTC that knows sm_120f
BUNDLES_HEADERS = (13, 3)  # the first that carries the CUDA headers inside the library

_FIRST_ERROR = re.compile(r"\b(?:error|fatal)\b[^:\n]*:")


@dataclass(frozen=True)
class Unit:
    """One translation unit.

    program   file name that NVRTC reports and that -lineinfo stores in the cubin, so never a temporary path
    source    CUDA C++ text, with #line directives that lead back to template and YAML
    headers   include name -> text of every header of the package that the source reaches
    cuda      True when the source or a header includes a CUDA header
    target    a key of TARGETS
    """

    program: str
    source: str
    headers: Mapping[str, str]
    cuda: bool
    target: str


@dataclass(frozen=True)
class CudaHeaders:
    """Where `<cuda_bf16.h>` and its like come from.

    options     the NVRTC options that make them found
    signature   part of the cache key: changes when their contents may have changed
    """

    options: tuple[str, ...]
    signature: str


def architecture(name: str) -> str:
    """NVRTC's name of a target ("compute_120f" -> "sm_120f"); UsageError with the list for an unknown one."""
    return find_target(name).arch


def options(target: str) -> tuple[str, ...]:
    """The options that decide what code comes out; include folders are not among them.

    -default-device lets helpers of the kernel library stay free of `__device__` on every constexpr function;
    ptxas -v is where the spill counts come from (see cubin.ptxas_usage); a hit in NVRTC's own cache would not print them.
    """
    return (
        f"--gpu-architecture={architecture(target)}",
        "-std=c++17",
        "-default-device",
        "-lineinfo",
        "--ptxas-options=-v",
        "--no-cache",
    )


@functools.cache
def version() -> tuple[int, int]:
    """(major, minor) of the NVRTC library; CompileError when it is missing or older than OLDEST."""
    try:
        status, major, minor = _binding().nvrtcVersion()
    except (RuntimeError, OSError) as error:  # cuda-pathfinder's DynamicLibNotFoundError is a RuntimeError
        raise CompileError("NVRTC library not found; pip install nvidia-cuda-nvrtc") from error
    _check(status, "nvrtcVersion")
    if (major, minor) < OLDEST:
        raise CompileError(
            f"NVRTC {major}.{minor} is too old for {DEFAULT_TARGET}: {OLDEST[0]}.{OLDEST[1]} or newer is needed; "
            "pip install -U nvidia-cuda-nvrtc"
        )
    return major, minor


@functools.cache
def identity() -> str:
    """NVRTC's version and the size of its library file: tells builds apart that share major.minor."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    major, minor = version()
    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    return f"{major}.{minor}-{Path(path).stat().st_size if path else 0}"


def cuda_headers(folder: Path) -> CudaHeaders:
    """CUDA's own headers: from inside NVRTC where it has them, else from an include folder of the pip wheels.

    folder   private folder into which NVRTC unpacks its headers once (26 MB); it does its own locking there
    """
    major, minor = version()
    if (major, minor) >= BUNDLES_HEADERS:
        return CudaHeaders((f"--use-bundled-headers={folder / f'cuda-{major}.{minor}'}",), "bundled")
    for include in _include_folders(major):
        if (include / "cuda_bf16.h").is_file():
            sizes = sorted(f"{path.name}:{path.stat().st_size}" for path in include.glob("*.h*"))
            return CudaHeaders((f"-I{include}",), " ".join(sizes))
    raise CompileError(
        f"NVRTC {major}.{minor} brings no CUDA headers and none were found; pip install -U nvidia-cuda-nvrtc "
        f"(13.3 or newer brings them) or pip install nvidia-cuda-runtime{'-cu12' if major == 12 else ''}"
    )


def compile_unit(unit: Unit, headers: CudaHeaders) -> tuple[bytes, str]:
    """Compiles one unit and returns (cubin, log); safe to call from several threads, the GIL is released.

    Raises:
        CompileError: NVRTC or ptxas refused the source. The message is the first error, at the place that #line
            names; the whole log is attached as a note (`error.__notes__`).
    """
    nvrtc = _binding()
    names, texts = [n.encode() for n in unit.headers], [t.encode() for t in unit.headers.values()]
    status, program = nvrtc.nvrtcCreateProgram(unit.source.encode(), unit.program.encode(), len(names), texts, names)
    _check(status, "nvrtcCreateProgram")
    try:
        flags = [o.encode() for o in (*options(unit.target), *(headers.options if unit.cuda else ()))]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = _fetch(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0 \n").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            error = CompileError(f"{unit.program} for {unit.target}: {first_error(log) or status.name}")
            error.add_note(log)
            raise error
        return _fetch(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def first_error(log: str) -> str:
    """The line of an NVRTC or ptxas log that names the first error, and how many lines report others."""
    errors = [line.strip() for line in log.splitlines() if _FIRST_ERROR.search(line)]
    if not errors:
        return log.strip().split("\n", 1)[0]
    return errors[0] if len(errors) == 1 else f"{errors[0]} (and {len(errors) - 1} more)"


@functools.cache
def _binding() -> Any:
    """cuda.bindings.nvrtc, imported on first use: the rest of the package works without cuda-python."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise CompileError("the Python package cuda-python is missing; pip install cuda-python") from error
    return nvrtc


def _include_folders(major: int) -> list[Path]:
    """Include folders that fit CUDA `major`: those of the pip wheels, then a toolkit named by the environment."""
    try:
        import nvidia  # the wheels' namespace package: it may have several roots
    except ImportError:
        roots: list[Path] = []
    else:
        roots = [Path(root) for root in nvidia.__path__]
    folders = [root / ("cuda_runtime" if major == 12 else f"cu{major}") / "include" for root in roots]
    return folders + [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]


def _fetch(program: Any, size: Callable[..., Any], data: Callable[..., Any]) -> bytes:
    status, length = size(program)
    _check(status, size.__name__)
    buffer = bytes(length)  # the binding fills the object in place
    _check(data(program, buffer)[0], data.__name__)
    return buffer


def _check(status: Any, call: str) -> None:
    if int(status) != 0:
        raise CompileError(f"{call} failed with {status.name}")
