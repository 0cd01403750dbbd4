"""Rounds as graphs, on a driver that only remembers: what is captured where, behind what, and under which condition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddtree.runtime.cuda import loop
from ddtree.runtime.cuda.loop import DeviceRounds, HostRounds
from ddtree.runtime.cuda.round import Branch
from ddtree.runtime.cuda.step import CudaStep

REAL = loop.cu
BRANCHES = {"on_take_in": 1, "on_draft": 1, "choice": 3, "on_commit": 2}


class Driver:
    """The calls that graphs of rounds make. A graph is a list of (node, the nodes that it waits for)."""

    def __init__(self) -> None:
        self.graphs: dict[int, list[tuple[Any, list[Any]]]] = {}
        self.capturing: dict[Any, tuple[int, list[Any]]] = {}
        self.handles: list[tuple[int, int]] = []  # value at each launch, flags
        self.launched: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(REAL, name)  # enumerations and parameter structs

    def new(self) -> int:
        self.graphs[len(self.graphs) + 1] = []
        return len(self.graphs)

    def cuGraphCreate(self, flags: int) -> Any:  # noqa: N802
        return 0, self.new()

    def cuStreamCreate(self, flags: int) -> Any:  # noqa: N802
        return 0, "side"

    def cuGraphConditionalHandleCreate(self, graph: int, context: Any, first: int, flags: int) -> Any:  # noqa: N802
        self.handles.append((first, flags))
        return 0, len(self.handles) - 1

    def cuStreamBeginCaptureToGraph(self, stream: Any, graph: Any, deps: Any, data: Any, count: int, mode: Any) -> Any:  # noqa: N802
        assert stream not in self.capturing and not self.graphs[int(graph)], "captured into an empty graph"
        self.capturing[stream] = int(graph), []
        return (0,)

    def cuStreamEndCapture(self, stream: Any) -> Any:  # noqa: N802
        return 0, self.capturing.pop(stream)[0]

    def cuStreamGetCaptureInfo(self, stream: Any) -> Any:  # noqa: N802
        graph, last = self.capturing[stream]
        return 0, 1, 1, graph, [*last, None], None, len(last)

    def cuGraphAddNode(self, graph: Any, after: list[Any], data: Any, count: int, params: Any) -> Any:  # noqa: N802
        inner = params.conditional
        bodies = [self.new() for _ in range(inner.size)]
        node = (str(inner.type).rsplit("_", 1)[-1].split(":")[0], inner.handle, bodies)
        self.graphs[int(graph)].append((node, after))
        params.conditional.phGraph_out = bodies
        return 0, node

    def cuStreamUpdateCaptureDependencies(self, stream: Any, deps: list[Any], data: Any, count: int, flags: Any) -> Any:  # noqa: N802
        self.capturing[stream] = self.capturing[stream][0], deps
        return (0,)

    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:  # noqa: N802
        assert not self.capturing
        return 0, graph

    def cuGraphUpload(self, graph: int, stream: Any) -> Any:  # noqa: N802
        return (0,)

    def cuGraphLaunch(self, graph: int, stream: Any) -> Any:  # noqa: N802
        self.launched.append(graph)
        return (0,)

    def CUgraphNodeParams(self) -> Any:  # noqa: N802
        return SimpleNamespace(conditional=SimpleNamespace())

    def CUgraph(self, graph: int) -> int:  # noqa: N802
        return graph

    def launch(self, name: str, stream: Any) -> None:
        """A kernel or a step enters a stream, which must be capturing."""
        graph, last = self.capturing[stream]
        self.graphs[graph].append((name, last))
        self.capturing[stream] = graph, [name]

    def shown(self, graph: int) -> list[Any]:
        """A graph as names, and (kind, handle, bodies) for conditional nodes. Every node waits for the one before it."""
        nodes = self.graphs[graph]
        assert [after for _, after in nodes] == [[], *([node] for node, _ in nodes[:-1])][: len(nodes)]
        return [n if isinstance(n, str) else (n[0], n[1], [self.shown(b) for b in n[2]]) for n, _ in nodes]


class Step(CudaStep):
    def __init__(self, name: str, driver: Driver) -> None:
        self.name, self.driver = name, driver

    def launch(self, stream: Any = None) -> None:
        self.driver.launch(self.name, stream)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(loop, "cu", made)
    return made


class Parts:
    """Of a round that chooses its size, or of one with a fixed capacity."""

    def __init__(self, driver: Driver, *, choosing: bool) -> None:
        self.device = SimpleNamespace(stream="main", context=None)
        self.driver, self.choosing, self.handles = driver, choosing, dict[str, int]()

    def sequence(self, rows: int = 0) -> list[Any]:
        def step(name: str) -> Step:
            return Step(name, self.driver)

        if not self.choosing:
            return ["draft_rows", step("draft"), step(f"verify {rows}"), "advance"]
        return [
            "context_rows", Branch("IF", "on_take_in", ((step("context"),),)), Branch("IF", "on_draft", (("draft_rows", step("draft")),)),
            "tree_rows", Branch("SWITCH", "choice", tuple((step(f"verify {n}"),) for n in (1, 4, 6))), "commit_rows",
            Branch("IF", "on_commit", ((step("commit"),), ("keep_features", step("store")))), "advance",
        ]  # fmt: skip

    def between(self, handles: dict[str, int]) -> Any:
        self.handles = dict(handles)
        names = ("context_rows", "draft_rows", "tree_rows", "commit_rows", "keep_features", "advance")
        return {n: SimpleNamespace(launch=lambda stream, n=n: self.driver.launch(n, stream)) for n in names}


def test_a_loop_of_rounds_that_branch(driver: Driver) -> None:
    parts = Parts(driver, choosing=True)
    rounds = DeviceRounds(parts)  # type: ignore[arg-type]
    rounds.launch(1)
    rounds.launch(9)
    h = parts.handles
    assert sorted(h) == sorted([*BRANCHES, "more"]) and len(set(h.values())) == 5
    assert [driver.handles[h[n]] for n in (*BRANCHES, "more")] == [(0, 0)] * 4 + [
        (1, REAL.CU_GRAPH_COND_ASSIGN_DEFAULT)
    ]
    body = [
        "context_rows", ("IF", h["on_take_in"], [["context"]]), ("IF", h["on_draft"], [["draft_rows", "draft"]]), "tree_rows",
        ("SWITCH", h["choice"], [["verify 1"], ["verify 4"], ["verify 6"]]), "commit_rows",
        ("IF", h["on_commit"], [["commit"], ["keep_features", "store"]]), "advance",
    ]  # fmt: skip
    assert driver.shown(driver.launched[0]) == [("WHILE", h["more"], [body])] and driver.launched == [1, 1]


def test_the_host_launches_a_round_that_branches(driver: Driver) -> None:
    parts = Parts(driver, choosing=True)
    rounds = HostRounds(parts)  # type: ignore[arg-type]
    for rows in (1, 9, 64):
        rounds.launch(rows)
    assert driver.launched == [1, 1, 1] and "more" not in parts.handles
    assert [n if isinstance(n, str) else n[0] for n in driver.shown(1)] == [
        "context_rows", "IF", "IF", "tree_rows", "SWITCH", "commit_rows", "IF", "advance",
    ]  # fmt: skip


def test_the_host_launches_a_graph_for_each_capacity(driver: Driver) -> None:
    rounds = HostRounds(Parts(driver, choosing=False))  # type: ignore[arg-type]
    for rows in (3, 4, 9, 1):
        rounds.launch(rows)
    assert driver.launched == [1, 1, 2, 3] and not driver.handles
    assert [driver.shown(g)[2] for g in (1, 2, 3)] == ["verify 4", "verify 12", "verify 1"]
