"""The order in which an emulated kernel's threads and blocks run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """One interleaving.

    order         how threads released together, and blocks, are started: ascending, descending or shuffled
    depth_first   True: a released thread runs before those that wait longer (one warp runs far ahead); False: round robin
    seed          of the shuffle
    """

    order: Literal["forward", "reverse", "random"] = "forward"
    depth_first: bool = False
    seed: int = 0

    @property
    def order_code(self) -> int:
        """The number the runtime knows the order by."""
        return ("forward", "reverse", "random").index(self.order)


SCHEDULES: tuple[Schedule, ...] = (
    Schedule("forward"),
    Schedule("reverse"),
    Schedule("forward", depth_first=True),
    Schedule("reverse", depth_first=True),
    Schedule("random", seed=1),
    Schedule("random", depth_first=True, seed=2),
)
