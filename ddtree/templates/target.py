"""The GPUs that code is generated for, and their limits."""

from __future__ import annotations

from dataclasses import dataclass

from ddtree.errors import UsageError

# Bytes of shared memory that a block may use on SM120 (99 KiB). Hopper has 227 KiB, but a kernel that fits only there
# would have to be tuned and tested twice.
SHARED_LIMIT = 101_376


@dataclass(frozen=True)
class Target:
    """A code-generation target.

    name   as YAML and the commands spell it         arch  what NVRTC compiles for. A `compute_*` architecture gives PTX
           only and an empty cubin, without an error; PTX also ties the user to a driver as new as NVRTC. Hence the
           family-specific machine code `sm_120f` under the name that users know
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
