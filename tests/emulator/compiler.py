"""The C++ compiler that turns a kernel into a shared library: g++ or clang++, else the clang of the ziglang wheel."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

Mode = Literal["fast", "check"]

BASE_FLAGS = [
    "-std=c++20",
    "-O2",
    "-ffp-contract=off",
    "-fPIC",
    "-fno-exceptions",
    "-fno-strict-aliasing",
    "-g1",
    "-gdwarf-4",
    "-w",
]
KERNEL_FLAGS = ["-fvisibility=hidden"]
CHECK_FLAGS = ["-fsanitize=thread", "-fsanitize=alignment,bounds,shift-exponent", "-fno-sanitize-recover=all"]

GCC_CHECK_FLAGS = ["--param", "tsan-instrument-func-entry-exit=0"]
CLANG_CHECK_FLAGS = ["-fno-sanitize-trap=all"]

LINK_FLAGS = ["-shared", "-O2"]  # without -O2 zig links its own sanitizer handlers, which abort


class CompilerError(RuntimeError):
    """No compiler was found, or it refused a source."""


@dataclass(frozen=True)
class Compiler:
    """How to call one compiler.

    version               first line of --version
    kernel_link_command   without the C++ library: kernels do not use it, and zig would link it statically
    """

    name: Literal["gcc", "clang", "zig"]
    command: tuple[str, ...]
    kernel_link_command: tuple[str, ...]
    version: str

    def flags(self, mode: Mode) -> list[str]:
        """Flags for kernel sources in `mode`."""
        march = "-march=x86_64_v3" if self.name == "zig" else "-march=x86-64-v3"
        flags = [march, *BASE_FLAGS]
        if mode == "check":
            flags += CHECK_FLAGS
            flags += GCC_CHECK_FLAGS if self.name == "gcc" else CLANG_CHECK_FLAGS
        elif self.name == "zig":
            flags.append("-fno-sanitize=all")  # zig turns some checks on by default, with a trap
        return flags

    def run(self, arguments: list[str]) -> None:
        """Compile, or link a library that needs the C++ library (zig builds its own on the first use, about a minute)."""
        self._run(self.command, arguments)

    def link_kernel(self, arguments: list[str]) -> None:
        """Link a kernel's library."""
        self._run(self.kernel_link_command, arguments)

    def _run(self, command: tuple[str, ...], arguments: list[str]) -> None:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise CompilerError(done.stderr or f"{self.name} failed with status {done.returncode}")


def _version(command: list[str]) -> str | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else None


def _native(name: Literal["gcc", "clang"], program: str) -> Compiler | None:
    path = shutil.which(program)
    version = _version([path]) if path else None
    return Compiler(name, (path,), (path,), version) if path and version else None


def _zig() -> Compiler | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    zig = [sys.executable, "-m", "ziglang"]
    version = _version([*zig, "c++"])
    return Compiler("zig", (*zig, "c++"), (*zig, "cc"), version) if version else None


@functools.cache
def find_compiler(name: str | None = None) -> Compiler:
    """The compiler called `name` (gcc, clang or zig), by default $DDTREE_EMULATOR_CXX, else the first one that is installed."""
    name = name or os.environ.get("DDTREE_EMULATOR_CXX") or None
    finders = {"gcc": lambda: _native("gcc", "g++"), "clang": lambda: _native("clang", "clang++"), "zig": _zig}
    if name is not None and name not in finders:
        raise CompilerError(f"unknown compiler {name!r}: expected gcc, clang or zig")
    for key, find in finders.items():
        if name in (None, key) and (found := find()):
            return found
    raise CompilerError(f"no C++ compiler ({name or 'g++, clang++ or the ziglang wheel'}): pip install ziglang")


def unsupported_reason() -> str | None:
    """Why kernels cannot be emulated on this machine, or None. For pytest's skip."""
    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        return f"the emulator needs x86-64 Linux, this is {platform.machine()} {sys.platform}"
    try:
        find_compiler()
    except CompilerError as error:
        return str(error)
    return None
