"""Rendered sources -> inspected cubins for one or several targets: in parallel, through the compile cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddtree.errors import CompileError
from ddtree.runtime import nvrtc
from ddtree.runtime.cache import CompileCache, Entry, content_key
from ddtree.runtime.cubin import Usage, inspect, ptxas_usage
from ddtree.runtime.headers import HeaderReader
from ddtree.templates.target import SHARED_LIMIT, TARGETS

_FILE_NAME = re.compile(r"\w[\w.-]*", re.ASCII)

Progress = Callable[[int, int, "CompiledKernel"], None]


@dataclass(frozen=True)
class KernelSource:
    """A rendered kernel.

    name           unique in a model; becomes a file name
    op             the op it implements, as in the YAML
    source         CUDA C++ text
    dynamic_smem   largest dynamic shared memory it is launched with, bytes per block
    threads        of a block
    """

    name: str
    op: str
    source: str
    dynamic_smem: int
    threads: int = 32

    def __post_init__(self) -> None:
        for text in (self.name, self.op):
            if not _FILE_NAME.fullmatch(text):
                raise ValueError(f"{text!r} can't be part of a file name: letters, digits, '_', '.', '-' only")


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one KernelSource for one target, inspected.

    symbols       names of its `__global__` functions
    registers     per thread, the largest of its kernels
    stack_bytes   local memory per thread: spills and indexed local arrays
    spill_bytes   spill stores + loads that ptxas reports
    smem_bytes    shared memory per block: static + the largest dynamic size launched
    threads       of a block
    cached        True when the cubin came from the compile cache
    seconds       time it took to compile or to load
    """

    name: str
    op: str
    target: str
    cubin: bytes
    symbols: tuple[str, ...]
    registers: int
    stack_bytes: int
    spill_bytes: int
    smem_bytes: int
    threads: int
    cached: bool
    seconds: float

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that are resident on one multiprocessor of the target."""
        return TARGETS[self.target].blocks_per_sm(self.threads, self.registers, self.smem_bytes)

    @property
    def cubin_bytes(self) -> int:
        """Size of the cubin file."""
        return len(self.cubin)


@dataclass(frozen=True)
class _Built:
    entry: Entry
    cached: bool
    seconds: float


def compile_all(
    sources: Sequence[KernelSource],
    targets: Sequence[str],
    *,
    jobs: int | None = None,
    cache: CompileCache | None = None,
    dump_dir: Path | None = None,
    progress: Progress | None = None,
    allow_spills: bool = False,
) -> list[CompiledKernel]:
    """Compiles every source for every target; the result has all targets of the first source, then of the second...

    jobs           threads; default: the cores this process may use (NVRTC works outside the GIL)
    cache          None compiles everything anew
    dump_dir       receives every source as NAME.cu, before anything is compiled
    progress       called in this thread as (kernels done, kernels in all, the kernel)
    allow_spills   for experiments: accept kernels that spill registers

    Raises:
        UsageError: unknown target.
        CompileError: NVRTC's first error; or a kernel that spills, needs more than SHARED_LIMIT bytes of shared memory
            or calls a forbidden function.
    """
    targets = list(dict.fromkeys(targets))
    for target in targets:
        nvrtc.architecture(target)
    if dump_dir is not None:
        dump_sources(sources, dump_dir)
    units = _units(sources, targets)
    kernels: dict[int, CompiledKernel] = {}
    with contextlib.ExitStack() as stack:
        folder = cache.root if cache else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddtree-")))
        headers = nvrtc.cuda_headers(folder)
        users: dict[str, list[int]] = {}  # the same text may be wanted under several names: it is compiled once
        for index, (_, unit) in enumerate(units):
            users.setdefault(_key(unit, headers), []).append(index)
        pool = ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0)), thread_name_prefix="nvrtc")
        stack.callback(pool.shutdown, cancel_futures=True)
        waiting = {pool.submit(_obtain, key, units[user[0]][1], headers, cache): user for key, user in users.items()}
        for future in as_completed(waiting):
            for index in waiting[future]:
                source, unit = units[index]
                kernels[index] = _kernel(source, unit.target, future.result())
                if progress:
                    progress(len(kernels), len(units), kernels[index])
    if cache and not all(kernel.cached for kernel in kernels.values()):
        cache.prune()
    result = [kernels[index] for index in range(len(units))]
    check(result, allow_spills=allow_spills)
    return result


def check(kernels: Sequence[CompiledKernel], *, allow_spills: bool = False) -> None:
    """CompileError for a kernel that spills, needs too much shared memory or calls a forbidden function."""
    faults = [(kernel, fault) for kernel in kernels for fault in _faults(kernel, allow_spills)]
    if faults:
        kernel, fault = faults[0]
        more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
        raise CompileError(f"kernel {kernel.name} for {kernel.target}: {fault}{more}")


def dump_sources(sources: Sequence[KernelSource], folder: Path) -> None:
    """Writes every source to `folder`/NAME.cu; CompileError when the folder can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            (folder / f"{source.name}.cu").write_text(source.source, encoding="utf-8")
    except OSError as error:
        raise CompileError(f"cannot write sources to {folder}: {error.strerror}") from error


def report(model: str, kernels: Sequence[CompiledKernel], seconds: float) -> dict[str, Any]:
    """The object that `ddtree-compile --json` prints; "target" is a list when there are several."""
    targets = list(dict.fromkeys(kernel.target for kernel in kernels))
    columns = (
        "name", "op", "target", "threads", "registers", "spill_bytes", "smem_bytes", "blocks_per_sm", "cubin_bytes", "cached",
    )  # fmt: skip
    return {
        "model": model,
        "target": targets[0] if len(targets) == 1 else targets,
        "seconds": round(seconds, 3),
        "kernels": [{column: getattr(kernel, column) for column in columns} for kernel in kernels],
    }


def _units(sources: Sequence[KernelSource], targets: Sequence[str]) -> list[tuple[KernelSource, nvrtc.Unit]]:
    """Every source with its translation unit for each target."""
    reader = HeaderReader()
    texts: dict[str, str] = {}
    units = []
    for source in sources:
        if texts.setdefault(source.name, source.source) != source.source:
            raise CompileError(f"two different kernels are named {source.name}; rename one in its template")
        program = f"{source.op}_{hashlib.sha256(source.source.encode()).hexdigest()[:12]}.cu"
        headers = reader.reachable(source.source, source.name)
        cuda = bool(headers.cuda)
        units += [(source, nvrtc.Unit(program, source.source, headers.own, cuda, target)) for target in targets]
    return units


def _key(unit: nvrtc.Unit, headers: nvrtc.CudaHeaders) -> str:
    return content_key(
        {
            **asdict(unit),
            "options": nvrtc.options(unit.target),
            "nvrtc": nvrtc.identity(),
            "cuda_headers": headers.signature if unit.cuda else "",
        }
    )


def _obtain(key: str, unit: nvrtc.Unit, headers: nvrtc.CudaHeaders, cache: CompileCache | None) -> _Built:
    start = time.perf_counter()
    build = functools.partial(_build, unit, headers)
    entry, cached = cache.get(key, build) if cache else (build(), False)
    return _Built(entry, cached, time.perf_counter() - start)


def _build(unit: nvrtc.Unit, headers: nvrtc.CudaHeaders) -> Entry:
    """Compiles a unit; refuses a log that doesn't cover the cubin, since a missing line would read as "no spills"."""
    cubin, log = nvrtc.compile_unit(unit, headers)
    registers, usage = inspect(cubin).registers, ptxas_usage(log)
    if set(registers) != set(usage.kernels) or max(registers.values(), default=0) != usage.registers:
        raise CompileError(f"{unit.program}: the cubin holds {registers}, but ptxas reported {usage}")
    facts = {
        "program": unit.program,
        "target": unit.target,
        "options": list(nvrtc.options(unit.target)),
        "nvrtc": nvrtc.identity(),
        "headers": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in unit.headers.items()},
        "usage": asdict(usage),
        "log": log,
    }
    return Entry(cubin, unit.source, facts)


def _kernel(source: KernelSource, target: str, built: _Built) -> CompiledKernel:
    facts = built.entry.facts["usage"]
    usage = Usage(**{**facts, "kernels": tuple(facts["kernels"])})
    return CompiledKernel(
        name=source.name,
        op=source.op,
        target=target,
        cubin=built.entry.cubin,
        symbols=usage.kernels,
        registers=usage.registers,
        stack_bytes=usage.stack_bytes,
        spill_bytes=usage.spill_bytes,
        smem_bytes=usage.smem_bytes + source.dynamic_smem,
        threads=source.threads,
        cached=built.cached,
        seconds=built.seconds,
    )


def _faults(kernel: CompiledKernel, allow_spills: bool) -> list[str]:
    faults = []
    if kernel.spill_bytes and not allow_spills:
        faults.append(f"spills {kernel.spill_bytes} bytes at {kernel.registers} registers; use smaller tiles")
    if kernel.smem_bytes > SHARED_LIMIT:
        faults.append(f"needs {kernel.smem_bytes} bytes of shared memory, at most {SHARED_LIMIT} fit; use fewer stages")
    if forbidden := inspect(kernel.cubin).forbidden:
        faults.append(f"calls {', '.join(forbidden)}; use shared::cta for bulk copies")
    return faults
