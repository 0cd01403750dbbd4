"""Edited copies of the shipped YAML files, and the one line that a mistake in them gives."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddtree.errors import DdtreeError
from ddtree.graph.build import build_step, steps_of
from ddtree.graph.model import Model, load

MODELS = Path(__file__).parents[2] / "models"
TARGET, DRAFTER = "kimi_tiny.yaml", "dflash_tiny.yaml"
HERE = "¦"  # in a replacement: where the message must point

Edit = tuple[str, str]  # text that occurs in the file, and what takes the place of its first occurrence


def copy_models(folder: Path) -> Path:
    """The target's YAML in `folder`, its drafter and chat template beside it."""
    for name in (TARGET, DRAFTER, "kimi_chat.jinja"):
        shutil.copy(MODELS / name, folder)
    return folder / TARGET


def edit(file: Path, old: str, new: str) -> tuple[int, int]:
    """Replace the first `old` by `new` without its HERE; returns line and column of HERE, (1, 1) when there is none."""
    text = file.read_text(encoding="utf-8")
    assert old in text, f"{file.name} has no {old!r}"
    marked = text.replace(old, new, 1)
    file.write_text(marked.replace(HERE, ""), encoding="utf-8")
    before = marked.partition(HERE)[0] if HERE in marked else ""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def spot(marked: str, file: Path) -> str:
    """`file:line:column` of HERE in the first occurrence of `marked` (without it)."""
    text, (before, after) = file.read_text(encoding="utf-8"), marked.split(HERE)
    at = text.index(before + after) + len(before)
    return f"{file}:{text.count(chr(10), 0, at) + 1}:{at - text.rfind(chr(10), 0, at)}"


def check(file: Path, settings: Sequence[str] = (), *, ranks: int | None = None, draft: bool = True) -> Model:
    """Load a model and build all its steps, as `ddtree-compile --check` does."""
    model = load(file, settings, ranks=ranks, draft=draft)
    for step in steps_of(model):
        build_step(model, step)
    return model


def message(file: Path, settings: Sequence[str] = (), *, ranks: int | None = None, draft: bool = True) -> str:
    """What a user reads about a model that is wrong. It is one line."""
    with pytest.raises(DdtreeError) as caught:
        check(file, settings, ranks=ranks, draft=draft)
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert "\n" not in text and len(text) < 700
    return text


def mistake(folder: Path, old: str, new: str, *, name: str = TARGET, settings: Sequence[str] = ()) -> str:
    """The message about one edit, without the place, which must be the one that HERE marks in `new`."""
    target = copy_models(folder)
    line, column = edit(folder / name, old, new)
    place, text = f"{folder / name}:{line}:{column}: ", message(target, settings)
    assert text.startswith(place), f"{text!r} does not point to line {line}, column {column}"
    return text.removeprefix(place).replace(f"{folder}/", "")
