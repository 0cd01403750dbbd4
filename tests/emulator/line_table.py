"""Addresses of a shared library to source lines."""

from __future__ import annotations

from pathlib import Path


def source_line(library: Path, offset: int) -> str | None:
    return None
