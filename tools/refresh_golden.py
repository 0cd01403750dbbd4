"""Write the CUDA C of the fixture model's kernels to tests/golden, so that a change of a template shows as a diff.

python tools/refresh_golden.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddtree.graph.build import build_step, steps_of
from ddtree.graph.model import load
from ddtree.templates.program import distinct, program, tuning_of
from ddtree.templates.target import DEFAULT_TARGET, target

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "golden"
MODEL = ROOT / "models" / "kimi_tiny.yaml"


def sources() -> dict[str, str]:
    """Generated source of every kernel of every step, by file name."""
    model = load(MODEL)
    graphs = [build_step(model, step) for step in steps_of(model)]
    tuning = tuning_of(model, DEFAULT_TARGET)
    return {
        f"{name}.cu": kernel.source
        for name, kernel in program(distinct(graphs), target(DEFAULT_TARGET), tuning).items()
    }


def main() -> int:
    """Replace the folder's sources; returns the exit status."""
    FOLDER.mkdir(exist_ok=True)
    made = sources()
    for path in FOLDER.glob("*.cu"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
    print(f"{len(made)} kernels in {FOLDER.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
