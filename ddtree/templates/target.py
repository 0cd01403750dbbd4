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

    What one multiprocessor holds (CUDA programming guide, technical specifications per compute capability):
    shared  bytes of shared memory, of which a block takes RESERVED more than it asks for
    threads, blocks  that are resident together at most
    """

    name: str
    arch: str
    sms: int
    shared: int
    threads: int
    blocks: int

    def blocks_per_sm(self, threads: int, registers: int, smem: int) -> int:
        """Blocks of `threads` threads with `registers` each and `smem` bytes of shared memory that are resident together."""
        warps = -(-threads // 32)
        of_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
        by_registers = REGISTERS // of_warp // warps if registers else self.blocks
        return min(self.blocks, self.threads // (32 * warps), by_registers, self.shared // (smem + RESERVED))


REGISTERS = 65_536  # of a multiprocessor
REGISTER_UNIT = 256  # registers are given to a warp in such units
RESERVED = 1_024  # bytes of shared memory that the system takes for each block

TARGETS = {
    "compute_120f": Target("compute_120f", "sm_120f", sms=188, shared=102_400, threads=1_536, blocks=24),
    "sm_90a": Target("sm_90a", "sm_90a", sms=132, shared=233_472, threads=2_048, blocks=32),
}
DEFAULT_TARGET = "compute_120f"


def target(name: str) -> Target:
    """The target of that name. Raises UsageError with the known names."""
    if name not in TARGETS:
        raise UsageError(f"unknown target {name!r}; known targets: {', '.join(TARGETS)}")
    return TARGETS[name]
