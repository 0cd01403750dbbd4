"""What `budget: auto` keeps on the GPU, and what a round's record says of it."""

from __future__ import annotations

from collections.abc import Sequence

from ddtree.graph.buckets import BUCKETS
from ddtree.graph.budget import PATIENCE, Choice, Costs
from ddtree.graph.build import Limits
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.round_state import RoundState
from ddtree.templates.budget import first_state, joined


class BudgetMemory:
    """`struct BudgetState` and the costs that rounds are chosen by; written only while no round runs.

    state, table  device addresses of both      costs  as written last
    """

    def __init__(self, device: Device, limits: Limits) -> None:
        self.device, self.limits, first = device, limits, first_state(limits)
        self.state = device.alloc(first.nbytes, "state of the budget")
        self.table = device.alloc(8 * (2 * len(BUCKETS) + 1), "costs of rounds")
        self.costs = Costs((1.0,) * len(BUCKETS), 1.0)
        device.write(self.state, first)

    def use(self, costs: Costs) -> None:
        """Choose by these costs from now on."""
        self.costs = costs
        self.device.write(self.table, costs.table)

    def join(self, slot: int) -> None:
        """A sequence begins in a slot."""
        for offset, data in joined(self.limits, slot):
            self.device.write(self.state + offset, data)

    def choice(self, state: RoundState, at: int, slots: Sequence[int]) -> Choice:
        """Why the round of entry `at` of the ring had its size; its slots in row order."""
        c = state.columns
        draft, lost = bool(c["drafted"][at]), float(c["before"][at])
        return Choice(
            draft, draft and lost >= PATIENCE, {s: int(c["nodes"][at, s]) - 1 for s in slots}, int(c["rows"][at]),
            float(c["expected"][at]), float(c["ms"][at]), self.costs.at(len(slots)), lost,
            {s: tuple(c["factor"][at, s, 1:].tolist()) for s in slots} if draft else {},
        )  # fmt: skip
