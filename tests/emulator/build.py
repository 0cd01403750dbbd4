"""Shared libraries of kernels and of the emulator's runtime, cached by content."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.emulator.compiler import KERNEL_FLAGS, LINK_FLAGS, Compiler, Mode

HERE = Path(__file__).resolve().parent
SHIM = HERE / "include"
RUNTIME = HERE / "runtime"
KERNEL_INCLUDE = HERE.parents[1] / "ddtree" / "templates" / "include"


def cache_folder() -> Path:
    """$DDTREE_EMULATOR_CACHE, else ddtree-emulator in the user's cache folder."""
    chosen = os.environ.get("DDTREE_EMULATOR_CACHE")
    folder = (
        Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddtree-emulator"
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)


def _included(text: str, folders: Sequence[Path], seen: dict[Path, str]) -> None:
    """Collect in `seen` the text of every file of `folders` that `text` includes, directly or not."""
    for name in _INCLUDE.findall(text):
        path = next((f / name for f in folders if (f / name).is_file()), None)
        if path is not None and path not in seen:
            seen[path] = path.read_text()
            _included(seen[path], [path.parent, *folders], seen)


def _key(text: str, folders: Sequence[Path], *parts: str) -> str:
    """Name of a build: a hash of its whole text and of `parts`. Where the checkout lies does not matter."""
    seen: dict[Path, str] = {}
    _included(text, folders, seen)
    return hashlib.sha256("\0".join([text, *seen.values(), *parts]).encode()).hexdigest()[:20]


def _compile(folder: str, compiler: Compiler, source: str, name: str, flags: list[str]) -> str:
    """Compile `source`, called `name` in messages; the path of the object."""
    text, code = Path(folder, name), Path(folder, "code.o")
    text.write_text(source)
    compiler.run([*flags, "-x", "c++", "-c", str(text), "-o", str(code)])
    return str(code)


def _scratch(folder: Path) -> tempfile.TemporaryDirectory[str]:
    """Where one build works; a rename publishes its result, so that concurrent builders never see half a file."""
    return tempfile.TemporaryDirectory(dir=folder, prefix="build-")


@functools.cache
def runtime_library(compiler: Compiler) -> Path:
    """The emulator itself, compiled once per compiler."""
    flags = compiler.flags("fast")
    source = "".join(f'#include "{path.name}"\n' for path in sorted(RUNTIME.glob("*.cpp")))
    key = _key(source, [RUNTIME, SHIM], compiler.version, *flags)
    library = cache_folder() / f"libemulator-{key}.so"
    if not library.exists():
        with _scratch(library.parent) as folder:
            code, linked = (
                _compile(folder, compiler, source, "runtime.cpp", [*flags, f"-I{RUNTIME}", f"-I{SHIM}"]),
                Path(folder, "linked.so"),
            )
            compiler.run([*LINK_FLAGS, "-o", str(linked), code, f"-Wl,-soname,{library.name}", "-lm"])
            linked.replace(library)
    return library


def _entry(source: str, name: str) -> str:
    """The line that exports kernel `name`, with the thread count of its launch bounds (the first argument), else 1024."""
    bounds = re.search(rf"(?:\bKERNEL|__launch_bounds__)\s*\(([^;{{}}]*?)\)\s*{re.escape(name)}\s*\(", source)
    return f"EMULATED_KERNEL({name}, {bounds[1] if bounds else 1024})\n"


def kernel_library(
    source: str,
    names: Sequence[str],
    mode: Mode,
    include_dirs: Sequence[Path],
    defines: Sequence[str],
    compiler: Compiler,
) -> Path:
    """The library of one kernel source with the entries `names`; compiled on the first request."""
    runtime = runtime_library(compiler)
    folders = [*include_dirs, KERNEL_INCLUDE, SHIM]
    text = f'#include "emulation.h"\n#line 1 "kernel.cu"\n{source}\n' + "".join(_entry(source, n) for n in names)
    flags = [*compiler.flags(mode), *KERNEL_FLAGS, *(f"-D{d}" for d in defines)]
    key = _key(text, folders, runtime.name, *flags)
    library = runtime.parent / f"kernel-{key}.so"
    if not library.exists():
        with _scratch(library.parent) as folder:
            code, linked = (
                _compile(folder, compiler, text, "kernel.cu", [*flags, *(f"-I{f}" for f in folders)]),
                Path(folder, "linked.so"),
            )
            # Linked without the sanitizer's flag, which would pull in the runtime that the emulator replaces.
            compiler.link_kernel([*LINK_FLAGS, "-o", str(linked), code, str(runtime), "-Wl,-rpath,$ORIGIN", "-lm"])
            linked.replace(library)
    return library
