"""A whole round as one captured graph: draft, tree, verify, accept, commit. The host launches it and reads a record."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from ddtree.errors import DeviceError
from ddtree.graph.build import Limits
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.graph.step_graph import StepName
from ddtree.runtime.cuda.driver import Device, check
from ddtree.runtime.cuda.module import Call, Function
from ddtree.runtime.cuda.step import CudaStep
from ddtree.runtime.decoder import Round
from ddtree.templates.kernel import Tile
from ddtree.templates.round import ARGUMENTS, record_dtype

WAIT_SECONDS = 60.0  # a round of any model takes far less; a longer silence is a hang


class RoundState:
    """What a round reads and leaves: `struct Round` in device memory, and the record in pinned host memory."""

    def __init__(self, device: Device, limits: Limits) -> None:
        self.device, self.limits = device, limits
        n = limits.sequences
        self.arrays = {
            name: device.alloc(4 * n, f"round state {name}") for name in ("slots", "committed", "anchor", "remaining")
        }
        self.budget = device.alloc(4 * n, "round state budget")
        self.count = device.alloc(4 * n, "round state count")
        self.address = device.alloc(40, "round state")
        self.dtype = record_dtype(limits)
        size, scores = self.dtype.itemsize * n, 8 * n * limits.nodes
        host, self.record = device.pinned(size + scores + 64)
        self.rows = host[:size].view(self.dtype)
        at = -(-size // 8) * 8
        self.node_scores = host[at : at + scores].view(np.float64).reshape(n, limits.nodes)
        self.scores = self.record + at
        flag, self.flag = device.pinned(64)
        self.turn = flag[:4].view(np.uint32)
        self.turns = 0

    def write(self, slots: Sequence[int], values: Mapping[str, np.ndarray], budget: int) -> None:
        """Set the state of the next round; `values` has one array per slot for committed, anchor and remaining."""
        for name in ("committed", "anchor", "remaining"):
            self.device.write(self.arrays[name], values[name].astype(np.int32))
        self.device.write(self.arrays["slots"], np.asarray(slots, np.int32))
        self.device.write(self.budget, np.full(self.limits.sequences, budget, np.int32))
        packed = struct.pack("2i4P", len(slots), self.turns, *self.arrays.values())
        self.device.write(self.address, np.frombuffer(packed, np.uint8))

    def wait(self) -> None:
        """Sleep until the round that was launched last has written its record."""
        self.turns += 1
        deadline = time.monotonic() + WAIT_SECONDS
        spins = 0
        while int(self.turn[0]) != self.turns & 0xFFFFFFFF:
            spins += 1
            if spins % 4096 == 0:
                self._check_alive(deadline)

    def _check_alive(self, deadline: float) -> None:
        (status,) = cu.cuStreamQuery(self.device.stream)
        if int(status) not in (0, 600):  # success, not ready
            check((status,), "running a round (--check-kernels names the kernel)")
        if time.monotonic() > deadline:
            raise DeviceError(
                f"a round did not end within {WAIT_SECONDS:.0f} s; the GPU hangs or another process holds it"
            )

    def result(self, slot: int, seconds: dict[str, float]) -> Round:
        """What the last round did for one sequence."""
        r = self.rows[slot]
        n, length = int(r["nodes"]), int(r["length"])
        tree = DraftTree(
            r["token"][:n].copy(), r["parent"][:n].copy(), r["depth"][:n].copy(), self.node_scores[slot, :n].copy()
        )
        return Round(tree, r["path"][:length].tolist(), r["emitted"][:length].tolist(), seconds)


class RoundGraph:
    """The captured round at one row capacity.

    steps  draft (absent without a drafter), verify and commit, with their row tables; their kernels and the kernels
           between them (templates/round.py) become one graph
    """

    def __init__(
        self,
        state: RoundState,
        steps: Mapping[StepName, CudaStep],
        tiles: Mapping[str, Tile],
        functions: Mapping[str, Function],
    ) -> None:
        self.state, self.steps, self.device = state, steps, state.device
        places = self._places()
        between = {
            name: Call(functions[tile.name], tile, [places.get(a, 0) for a in ARGUMENTS[name]]) for name, tile in tiles.items()
        }  # fmt: skip
        self._handle: Any = None
        self._graph = self._capture(between)

    def _places(self) -> dict[str, int]:
        state, verify, commit = self.state, self.steps["verify"], self.steps["commit"]
        places = {
            "round": state.address, "record": state.record, "scores": state.scores, "flag": state.flag,
            "verify_table": verify.rows.address, "verify_ids": verify.tensor("ids"), "commit_table": commit.rows.address,
            "count": state.count,
        }  # fmt: skip
        places |= {name: verify.tensor(name) for name in ("path", "length", "emitted", "kept", "done")}
        if "draft" in self.steps:
            draft = self.steps["draft"]
            places |= {
                name: draft.tensor(name) for name in ("node_token", "node_parent", "node_depth", "node_score", "count")
            }
            places |= {"draft_table": draft.rows.address, "draft_ids": draft.tensor("ids")}
        return places

    def _body(self, between: Mapping[str, Call]) -> None:
        """Everything of a round, in order, on the device's stream."""
        stream, state, steps = self.device.stream, self.state, self.steps
        verify, commit = steps["verify"], steps["commit"]
        n = self.state.limits.sequences
        if "draft" in steps:
            between["draft_rows"].launch(stream)
            _copy(steps["draft"].tensor("anchor"), state.arrays["anchor"], 4 * n, stream)
            _copy(steps["draft"].tensor("budget"), state.budget, 4 * n, stream)
            steps["draft"].launch()
        between["tree_rows"].launch(stream)
        _copy(verify.tensor("remaining"), state.arrays["remaining"], 4 * n, stream)
        verify.launch()
        between["commit_rows"].launch(stream)
        for name, tensor in commit.graph.inputs.items():
            _copy(
                commit.tensor(name), verify.tensor(name), min(tensor.nbytes, verify.graph.outputs[name].nbytes), stream
            )
        commit.launch()
        between["advance"].launch(stream)

    def _capture(self, between: Mapping[str, Call]) -> Any:
        stream, mode = self.device.stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(cu.cuStreamBeginCapture(stream, mode), "capturing a round")
        try:
            self._body(between)
        finally:
            graph = check(cu.cuStreamEndCapture(stream), "capturing a round")
        self._handle = check(cu.cuGraphInstantiate(graph, 0), "instantiating a round")
        check(cu.cuGraphUpload(self._handle, stream), "uploading a round")
        return graph

    def launch(self) -> None:
        """Run the round once."""
        check(cu.cuGraphLaunch(self._handle, self.device.stream), "launching a round")


def _copy(to: int, source: int, nbytes: int, stream: Any) -> None:
    check(cu.cuMemcpyDtoDAsync(to, source, nbytes, stream), "copying between steps")
