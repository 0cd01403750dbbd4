"""A whole round as steps and the kernels between them: draft, tree, verify, accept, commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ddtree.runtime.cuda.budget import BudgetMemory
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.module import Call, Function
from ddtree.runtime.cuda.round_state import RoundState
from ddtree.runtime.cuda.step import CudaStep
from ddtree.templates import budget, round
from ddtree.templates.kernel import Tile

ARGUMENTS: Mapping[str, tuple[str, ...]] = {**round.ARGUMENTS, **budget.ARGUMENTS}


class Rounds(Protocol):
    """Runs rounds until they are to end.

    nap  seconds that the host may sleep between two looks at what they left
    """

    nap: float

    def launch(self, rows: int) -> None:
        """Start; no round of the launch verifies more than `rows` rows if the launch is one round."""


@dataclass(frozen=True)
class Branch:
    """A place where a condition, which a kernel of the round sets, chooses one of several bodies.

    SWITCH  the body with that number      IF  the first if it is not 0, the second, if there is one, otherwise
    """

    kind: Literal["IF", "SWITCH"]
    condition: str
    bodies: tuple[tuple[Part, ...], ...]


Part: TypeAlias = "str | CudaStep | Branch"  # a kernel between the steps by its name, a step, a branch


@dataclass(frozen=True)
class Choosing:
    """What rounds need that choose their size: what is kept between them, and the steps of rounds without a draft."""

    memory: BudgetMemory
    context: CudaStep
    store: CudaStep


@dataclass(frozen=True)
class Forced:
    """Device addresses of accepted lengths (AcceptTrace.table), and of each slot's rounds so far."""

    trace: int
    turns: int


@dataclass
class RoundParts:
    """The steps of a round and the kernels between them (templates/round.py, budget.py).

    draft     absent without a drafter      verify     by row capacity; all leave their results in the same places
    choosing  under budget auto             tiles      kernels between the steps
    functions loaded kernels by name        forced     with accepted lengths from a list
    """

    device: Device
    state: RoundState
    draft: CudaStep | None
    verify: Mapping[int, CudaStep]
    commit: CudaStep
    choosing: Choosing | None
    tiles: Mapping[str, Tile]
    functions: Mapping[str, Function]
    forced: Forced | None = None

    def sequence(self, rows: int = 0) -> list[Part]:
        """The parts of a round in order; verified at the row capacity `rows`, or at the one that `tree_rows` chooses."""
        steps = [step for _, step in sorted(self.verify.items())]
        verify: Part = self.verify[rows] if rows else steps[0]
        if not rows and len(steps) > 1:
            verify = Branch("SWITCH", "choice", tuple((step,) for step in steps))
        draft: tuple[Part, ...] = ("draft_rows", self.draft) if self.draft else ()
        verified = [verify, "force_accept"] if self.forced else [verify]
        if not self.choosing:
            return [*draft, "tree_rows", *verified, "commit_rows", self.commit, "advance"]
        return [
            "context_rows", Branch("IF", "on_take_in", ((self.choosing.context,),)), Branch("IF", "on_draft", (draft,)),
            "choose_budget", "tree_rows", *verified, "commit_rows",
            Branch("IF", "on_commit", ((self.commit,), ("keep_features", self.choosing.store))),
            "settle_budget", "advance",
        ]  # fmt: skip

    def between(self, handles: Mapping[str, int]) -> dict[str, Call]:
        """The kernels between the steps, by name, with the handles of the graph's conditions."""
        places = {**self._places(), **handles}
        return {
            name: Call(self.functions[tile.name], tile, [places.get(a, 0) for a in ARGUMENTS[name]])
            for name, tile in self.tiles.items()
        }

    def _places(self) -> dict[str, int]:
        state, verify = self.state, next(iter(self.verify.values()))
        places = {
            "round": state.address, "ring": state.records_address, "control": state.control, "count": state.count,
            "verify_table": verify.rows.address, "verify_ids": verify.tensor("ids"), "commit_table": self.commit.rows.address,
        }  # fmt: skip
        places |= {name: verify.tensor(name) for name in ("path", "length", "emitted", "kept", "done", "chosen")}
        if self.draft:
            drafted = ("node_token", "node_parent", "node_depth", "node_score", "count")
            places |= {name: self.draft.tensor(name) for name in drafted}
            places |= {"draft_table": self.draft.rows.address, "draft_ids": self.draft.tensor("ids")}
        if self.forced:
            places |= {"trace": self.forced.trace, "turns": self.forced.turns}
        if self.choosing:
            memory, context = self.choosing.memory, self.choosing.context
            places |= {
                "active": state.address, "slots": state.arrays["slots"], "budget_state": memory.state, "costs": memory.table,
                "features": verify.tensor("features"), "pending": context.tensor("features"), "context_table": context.rows.address,
            }  # fmt: skip
        return places
