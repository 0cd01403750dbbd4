"""Errors a user can meet. Each is one clear line and carries the exit code of the command that raised it."""

from __future__ import annotations

from pathlib import Path


class DdtreeError(Exception):
    """Base of every error that the commands print as one line; `exit_code` is the process's exit status."""

    exit_code = 1


class UsageError(DdtreeError):
    """A command line or a request that asks for something impossible."""

    exit_code = 2


class SpecError(DdtreeError):
    """A mistake in a YAML file, printed as `file:line:column: path: message`.

    line and column count from 1, as editors do; `path` is the dotted key path inside the file.
    """

    exit_code = 2

    def __init__(self, message: str, *, file: str | Path = "", line: int = 0, column: int = 0, path: str = "") -> None:
        place = f"{file}:{line}:{column}: " if file else ""
        super().__init__(f"{place}{path}: {message}" if path else f"{place}{message}")
        self.message, self.file, self.line, self.column, self.path = message, str(file), line, column, path


class CompileError(DdtreeError):
    """Generated CUDA C that NVRTC or the inspection of its machine code refused."""

    exit_code = 3


class WeightsError(DdtreeError):
    """A checkpoint that is missing, damaged or does not fit the YAML; the message names tensor and file."""

    exit_code = 4


class DeviceError(DdtreeError):
    """A GPU that is missing, failed, or produced NaN."""

    exit_code = 5
