"""Rounds without the host: one graph whose WHILE node runs them until every sequence has stopped or the host asks for a pause."""

from __future__ import annotations

from functools import partial
from typing import Any

from cuda.bindings import driver as cu

from ddtree.runtime.cuda.driver import check
from ddtree.runtime.cuda.round import RoundParts, capture, ready

NAP = 2e-4  # seconds; the loop does not wait for the host, so this delays only the moment at which a token is seen


class DeviceRounds:
    """WHILE { draft; tree; SWITCH over row capacities { verify }; commit; advance }, captured once.

    `advance` sets the condition (include/ddtree/loop.cuh), `tree_rows` the capacity. One capacity alone needs no SWITCH.
    """

    nap = NAP

    def __init__(self, parts: RoundParts) -> None:
        self.parts, self._stream = parts, parts.device.stream
        self._graph: Any = check(cu.cuGraphCreate(0), "making a graph")
        self._side: Any = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING), "creating a stream")
        more = self._handle(first=1)
        _, (body,) = self._conditional(self._graph, "WHILE", more, 1, [])
        choice = self._handle() if len(parts.verify) > 1 else None
        between = parts.between(choice=int(choice or 0), more=int(more))
        capture(self._stream, body, lambda: self._round(between, choice))
        self._executable = ready(self._graph, self._stream)

    def launch(self, rows: int) -> None:
        """Start the loop; each round chooses its row capacity."""
        check(cu.cuGraphLaunch(self._executable, self._stream), "launching the loop of rounds")

    def _round(self, between: Any, choice: Any) -> None:
        stream, verify = self._stream, [step for _, step in sorted(self.parts.verify.items())]
        self.parts.before(between, stream)
        if choice is None:
            verify[0].launch(stream)
        else:
            for body, step in zip(self._switch(choice, len(verify)), verify, strict=True):
                capture(self._side, body, partial(step.launch, self._side))
        self.parts.after(between, stream)

    def _switch(self, choice: Any, bodies: int) -> list[Any]:
        """A SWITCH node at this place of the capture; what is captured next waits for it."""
        _, _, graph, after, _, count = check(cu.cuStreamGetCaptureInfo(self._stream), "capturing a round")
        node, graphs = self._conditional(graph, "SWITCH", choice, bodies, after[:count])
        flag = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        check(cu.cuStreamUpdateCaptureDependencies(self._stream, [node], None, 1, flag), "capturing a round")
        return graphs

    def _handle(self, first: int | None = None) -> Any:
        """A condition of the graph; `first` is its value at each launch."""
        flags = 0 if first is None else cu.CU_GRAPH_COND_ASSIGN_DEFAULT
        context = self.parts.device.context
        what = "making a loop on the GPU (older drivers cannot: --set decode.loop_on=host does without)"
        return check(cu.cuGraphConditionalHandleCreate(self._graph, context, first or 0, flags), what)

    def _conditional(self, graph: Any, kind: str, handle: Any, bodies: int, after: list[Any]) -> tuple[Any, list[Any]]:
        """A conditional node behind others, and its empty body graphs."""
        params = cu.CUgraphNodeParams()
        params.type = cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        node = params.conditional
        node.type = getattr(cu.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{kind}")
        node.handle, node.size, node.ctx = handle, bodies, self.parts.device.context
        added = check(cu.cuGraphAddNode(graph, list(after), None, len(after), params), "adding a conditional node")
        return added, [cu.CUgraph(int(g)) for g in params.conditional.phGraph_out]  # copies: the array is the driver's
