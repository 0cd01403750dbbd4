"""The GPUs that code is generated for, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree.errors import UsageError

SHARED_LIMIT = 101_376  # bytes of shared memory a block may use: SM120's limit, kept on every target


@dataclass(frozen=True)
class Target:
    """A code-generation target.

    name   as YAML and the commands spell it         arch  what NVRTC compiles for
    sms    streaming multiprocessors of the reference card, for choosing grids
    """

    name: str
    arch: str
    sms: int


TARGETS = {
    "compute_120f": Target("compute_120f", "sm_120f", 188),
    "sm_90a": Target("sm_90a", "sm_90a", 132),
}
DEFAULT_TARGET = "compute_120f"


def target(name: str) -> Target:
    """The target of that name. Raises UsageError with the known names."""
    if name not in TARGETS:
        raise UsageError(f"unknown target {name!r}; known targets: {', '.join(TARGETS)}")
    return TARGETS[name]
