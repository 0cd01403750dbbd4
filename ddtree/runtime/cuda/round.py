"""A whole round as launches: draft, tree, verify, accept, commit. As one captured graph the host launches it once per round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cuda.bindings import driver as cu

from ddtree.graph.buckets import bucket
from ddtree.runtime.cuda.driver import Device, check
from ddtree.runtime.cuda.module import Call, Function
from ddtree.runtime.cuda.round_state import RoundState
from ddtree.runtime.cuda.step import CudaStep
from ddtree.templates.kernel import Tile
from ddtree.templates.round import ARGUMENTS

RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class Rounds(Protocol):
    """Runs rounds until they are to end.

    nap  seconds that the host may sleep between two looks at what they left
    """

    nap: float

    def launch(self, rows: int) -> None:
        """Start; no round of the launch verifies more than `rows` rows if the launch is one round."""


@dataclass
class RoundParts:
    """The steps of a round and the kernels between them (templates/round.py).

    draft   absent without a drafter         verify  by row capacity; all leave their results in the same places
    tiles   kernels between the steps        functions  loaded kernels by name
    """

    device: Device
    state: RoundState
    draft: CudaStep | None
    verify: Mapping[int, CudaStep]
    commit: CudaStep
    tiles: Mapping[str, Tile]
    functions: Mapping[str, Function]

    def between(self, *, choice: int = 0, more: int = 0) -> dict[str, Call]:
        """The kernels between the steps, by name, with the handles of the graph's conditional nodes."""
        places = {**self._places(), "choice": choice, "more": more}
        return {
            name: Call(self.functions[tile.name], tile, [places.get(a, 0) for a in ARGUMENTS[name]])
            for name, tile in self.tiles.items()
        }

    def before(self, between: Mapping[str, Call], stream: Any) -> None:
        """Everything up to the rows that are verified."""
        if self.draft:
            between["draft_rows"].launch(stream)
            self.draft.launch(stream)
        between["tree_rows"].launch(stream)

    def after(self, between: Mapping[str, Call], stream: Any) -> None:
        """Everything behind the verified rows."""
        between["commit_rows"].launch(stream)
        self.commit.launch(stream)
        between["advance"].launch(stream)

    def _places(self) -> dict[str, int]:
        state, verify = self.state, next(iter(self.verify.values()))
        places = {
            "round": state.address, "ring": state.records_address, "control": state.control, "count": state.count,
            "verify_table": verify.rows.address, "verify_ids": verify.tensor("ids"), "commit_table": self.commit.rows.address,
        }  # fmt: skip
        places |= {name: verify.tensor(name) for name in ("path", "length", "emitted", "kept", "done")}
        if self.draft:
            drafted = ("node_token", "node_parent", "node_depth", "node_score", "count")
            places |= {name: self.draft.tensor(name) for name in drafted}
            places |= {"draft_table": self.draft.rows.address, "draft_ids": self.draft.tensor("ids")}
        return places


class HostRounds:
    """A graph per row capacity, captured at its first use; each launch is one round."""

    nap = 0.0  # the GPU is idle until the host has seen the round's end

    def __init__(self, parts: RoundParts) -> None:
        self.parts, self.between = parts, parts.between()
        self._graphs: dict[int, tuple[Any, Any]] = {}

    def launch(self, rows: int) -> None:
        """One round that verifies at most `rows` rows."""
        capacity = bucket(rows)
        if capacity not in self._graphs:
            self._graphs[capacity] = self._capture(capacity)
        check(cu.cuGraphLaunch(self._graphs[capacity][0], self.parts.device.stream), "launching a round")

    def _capture(self, capacity: int) -> tuple[Any, Any]:
        parts, stream = self.parts, self.parts.device.stream
        graph = check(cu.cuGraphCreate(0), "making a graph")

        def record() -> None:
            parts.before(self.between, stream)
            parts.verify[capacity].launch(stream)
            parts.after(self.between, stream)

        capture(stream, graph, record)
        return ready(graph, stream), graph


def capture(stream: Any, graph: Any, record: Callable[[], None]) -> None:
    """Put what `record` launches into the stream into an empty graph instead."""
    check(cu.cuStreamBeginCaptureToGraph(stream, graph, [], None, 0, RELAXED), "capturing a round")
    try:
        record()
    finally:
        check(cu.cuStreamEndCapture(stream), "capturing a round")


def ready(graph: Any, stream: Any) -> Any:
    """A graph as something to launch, already on the GPU."""
    executable = check(cu.cuGraphInstantiate(graph, 0), "instantiating a round")
    check(cu.cuGraphUpload(executable, stream), "uploading a round")
    return executable
