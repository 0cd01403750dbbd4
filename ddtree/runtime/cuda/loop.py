"""Rounds as CUDA graphs: one whose WHILE node runs them without the host, or one that the host launches for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cuda.bindings import driver as cu

from ddtree.graph.buckets import bucket
from ddtree.runtime.cuda.driver import check
from ddtree.runtime.cuda.module import Call
from ddtree.runtime.cuda.round import Branch, Part, RoundParts
from ddtree.runtime.cuda.step import CudaStep

NAP = 2e-4  # seconds; the loop does not wait for the host, so this delays only the moment at which a token is seen
RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class RoundGraph:
    """A round captured once, with conditional nodes where it branches; `looped`: as the body of a WHILE node, whose condition
    `advance` sets (include/ddtree/loop.cuh)."""

    def __init__(self, parts: RoundParts, sequence: Sequence[Part], *, looped: bool) -> None:
        self.device, self._stream = parts.device, parts.device.stream
        self._graph: Any = check(cu.cuGraphCreate(0), "making a graph")
        self._side: Any = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING), "creating a stream")
        handles = {part.condition: self._handle() for part in sequence if isinstance(part, Branch)}
        body = self._graph
        if looped:
            handles["more"] = self._handle(first=1)
            _, (body,) = self._conditional(self._graph, "WHILE", handles["more"], 1, [])
        between = parts.between({name: int(handle) for name, handle in handles.items()})
        self._capture(self._stream, body, lambda: self._record(sequence, between, handles))
        self._executable: Any = check(cu.cuGraphInstantiate(self._graph, 0), "instantiating a round")
        check(cu.cuGraphUpload(self._executable, self._stream), "uploading a round")

    def launch(self) -> None:
        """Put the graph into the stream."""
        check(cu.cuGraphLaunch(self._executable, self._stream), "launching a round")

    def _record(self, sequence: Sequence[Part], between: Mapping[str, Call], handles: Mapping[str, Any]) -> None:
        for part in sequence:
            if isinstance(part, Branch):
                self._branch(part, between, handles[part.condition])
            else:
                _launch([part], between, self._stream)

    def _branch(self, branch: Branch, between: Mapping[str, Call], handle: Any) -> None:
        """A conditional node at this place of the capture; what is captured next waits for it."""
        _, _, graph, after, _, count = check(cu.cuStreamGetCaptureInfo(self._stream), "capturing a round")
        node, graphs = self._conditional(graph, branch.kind, handle, len(branch.bodies), after[:count])
        for body, parts in zip(graphs, branch.bodies, strict=True):
            self._capture(self._side, body, partial(_launch, parts, between, self._side))
        flag = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        check(cu.cuStreamUpdateCaptureDependencies(self._stream, [node], None, 1, flag), "capturing a round")

    @staticmethod
    def _capture(stream: Any, graph: Any, record: Callable[[], None]) -> None:
        """Put what `record` launches into the stream into an empty graph instead."""
        check(cu.cuStreamBeginCaptureToGraph(stream, graph, [], None, 0, RELAXED), "capturing a round")
        try:
            record()
        finally:
            check(cu.cuStreamEndCapture(stream), "capturing a round")

    def _handle(self, first: int | None = None) -> Any:
        """A condition of the graph; `first` is its value at each launch."""
        flags = 0 if first is None else cu.CU_GRAPH_COND_ASSIGN_DEFAULT
        what = "making a graph that branches (older drivers cannot: --set decode.loop_on=host and a tree.budget other than auto do without)"
        return check(cu.cuGraphConditionalHandleCreate(self._graph, self.device.context, first or 0, flags), what)

    def _conditional(self, graph: Any, kind: str, handle: Any, bodies: int, after: list[Any]) -> tuple[Any, list[Any]]:
        """A conditional node behind others, and its empty body graphs."""
        params = cu.CUgraphNodeParams()
        params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        node = params.conditional
        node.type = getattr(cu.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}")
        node.handle, node.size, node.ctx = handle, bodies, self.device.context
        added = check(cu.cuGraphAddNode(graph, list(after), None, len(after), params), "adding a conditional node")
        return added, [cu.CUgraph(int(g)) for g in params.conditional.phGraph_out]  # copies: the array is the driver's


class DeviceRounds:
    """Rounds until every sequence has stopped or the host asks for a pause, in one launch."""

    nap = NAP

    def __init__(self, parts: RoundParts) -> None:
        self._graph = RoundGraph(parts, parts.sequence(), looped=True)

    def launch(self, rows: int) -> None:
        """Start the loop; each round chooses its row capacity."""
        self._graph.launch()


class HostRounds:
    """Each launch is one round, of a graph per row capacity that is captured at its first use. Where rounds choose their size
    there is one graph, which branches."""

    nap = 0.0  # the GPU is idle until the host has seen the round's end

    def __init__(self, parts: RoundParts) -> None:
        self.parts = parts
        self._graphs: dict[int, RoundGraph] = {}

    def launch(self, rows: int) -> None:
        """One round that verifies at most `rows` rows."""
        capacity = 0 if self.parts.choosing else bucket(rows)
        if capacity not in self._graphs:
            self._graphs[capacity] = RoundGraph(self.parts, self.parts.sequence(capacity), looped=False)
        self._graphs[capacity].launch()


def _launch(parts: Sequence[Part], between: Mapping[str, Call], stream: Any) -> None:
    """Steps, and kernels between the steps by their names."""
    for part in parts:
        assert not isinstance(part, Branch), "branches do not nest"
        (part if isinstance(part, CudaStep) else between[part]).launch(stream)
