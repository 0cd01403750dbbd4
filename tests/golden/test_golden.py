"""The generated sources of the fixture model are those that were reviewed: `python tools/refresh_golden.py` renews them."""

from __future__ import annotations

from pathlib import Path

from tools.refresh_golden import FOLDER, sources


def test_every_kernel_is_as_reviewed() -> None:
    kept = {path.name: path.read_text() for path in Path(FOLDER).glob("*.cu")}
    made = sources()
    changed = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    assert not changed, f"{', '.join(changed)}: review the change, then run tools/refresh_golden.py"
    assert made, "the fixture model has kernels"
