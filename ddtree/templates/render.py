"""Ops to CUDA C: the Jinja environment, and one source per kernel."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path

import jinja2

from ddtree.graph.op import Op
from ddtree.templates.kernel import Kernel, Tile
from ddtree.templates.target import Target

ROOT = Path(__file__).parent
INCLUDE = ROOT / "include"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*")


def c_value(value: int | float | bool | str) -> str:
    """A value as C++ writes it. Only numbers, truth values and identifiers pass, never text from a YAML file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}f" if value == value and abs(value) != float("inf") else _refuse(value)
    return value if _IDENTIFIER.fullmatch(value) else _refuse(value)


def _refuse(value: object) -> str:
    raise ValueError(f"{value!r} cannot be written into C++")


@cache
def environment() -> jinja2.Environment:
    """StrictUndefined, so that a misspelt name is an error and not an empty string."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "kernels"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    env.filters["c"] = c_value
    return env


def tiles(op: Op, target: Target, *, tree: bool, tuning: dict[str, int] | None = None) -> tuple[Tile, ...]:
    """The launches of an op. `tree`: generated rows (decode kernels); otherwise prompt rows (prefill kernels)."""
    module = importlib.import_module(f"ddtree.templates.tiles.{op.name()}")
    made: tuple[Tile, ...] = module.tiles(op, target, tree=tree, tuning=tuning or {})
    return made


def render_tile(tile: Tile) -> str:
    """The CUDA C of one kernel: equal tiles give equal text, whatever layer asks. A compiler's message about the shell
    names its template (a message about device code names the header anyway)."""
    shell = f"{tile.template}.cu.jinja"
    return f'#line 1 "{shell}"\n' + environment().get_template(shell).render(kernel=tile.name, **tile.constants)


def render(op: Op, target: Target, *, tree: bool, tuning: dict[str, int] | None = None) -> list[Kernel]:
    """All kernels of an op, in launch order."""
    return [Kernel(t, op, render_tile(t)) for t in tiles(op, target, tree=tree, tuning=tuning)]
