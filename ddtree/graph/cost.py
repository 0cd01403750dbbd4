"""What an op costs: bytes it must move and operations it must do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Fewest bytes and operations of one op or step.

    weights  bytes of parameters read        read   bytes of activations and cache read
    write    bytes written                   flops  multiplications and additions
    """

    weights: int = 0
    read: int = 0
    write: int = 0
    flops: int = 0

    @property
    def bytes(self) -> int:
        """All bytes moved."""
        return self.weights + self.read + self.write

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.weights + other.weights, self.read + other.read, self.write + other.write, self.flops + other.flops
        )


@dataclass(frozen=True)
class Load:
    """The run for which a cost is asked: rows of the step, committed positions before them, sequences sharing them."""

    rows: int = 1
    context: int = 0
    sequences: int = 1
