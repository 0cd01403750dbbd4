"""How long a rank's step and each of its ops take, beside the time in which a pure read takes in the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ddtree.graph.cost import Load
from ddtree.graph.op import Op, row_traffic
from ddtree.graph.ops import ExpertMlp
from ddtree.graph.ops.expert_mlp import expected_experts
from ddtree.graph.step_graph import StepName
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.module import Call, Function
from ddtree.runtime.cuda.rank import Rank
from ddtree.runtime.cuda.replay import Replay
from ddtree.templates.measure import read_part, stream_read_tile

READ_BYTES = 8 << 30  # of the read that gives the bandwidth
CACHED = 160 << 20  # bytes: what one replay touches less of may still be in L2 when the next one begins


@dataclass
class OpTime:
    """The ops of a step that share a kind and weight shapes.

    us       of one op: the median replay of all of them, divided      bytes  touched by one: weights and cache rows
    read_us  a pure read of as many cold bytes, a launch for each op   cold   whether the replay is larger than L2
    """

    name: str
    count: int
    launches: int
    us: float
    bytes: int
    read_us: float
    cold: bool


@dataclass
class StepTime:
    """One step at one row count. Times in microseconds; `experts` is the mean number of distinct ones a layer."""

    step: StepName
    rows: int
    us: float
    bytes: int
    floor_us: float
    launches: int
    experts: float
    repeats_equal: bool
    ops: list[OpTime] = field(default_factory=list)


def label(op: Op) -> str:
    """Kind and weight shapes of an op: what decides its time."""
    shapes = "+".join("x".join(map(str, w.shape)) for w in op.weights() if len(w.full) > 1)
    return f"{op.name()} {shapes}".rstrip()


def touched(op: Op, load: Load, distinct: float) -> int:
    """Bytes that one op must take in from memory: weights, of experts those that are chosen, and cache rows. Activations stay
    in L2."""
    cost = op.cost(load)
    cache = cost.read - row_traffic(load, *op.reads()) if op.caches() else 0
    if not isinstance(op, ExpertMlp):
        return cost.weights + max(0, cache) if op.name() != "embed" else 0
    experts = op.gate.shape[0]
    routed = sum(w.nbytes for w in (op.gate, op.up, op.down)) / experts
    return cost.weights + round(routed * (distinct - expected_experts(experts, op.ids.shape[1], load.rows)))


class Reader:
    """Pure reads of a buffer far larger than L2."""

    def __init__(self, device: Device, function: Function) -> None:
        self.device, self.function = device, function
        self.buffer, self.never = device.alloc(READ_BYTES, "the read measurement"), device.alloc(16, "a word")
        device.fill(self.buffer, 0x5A, READ_BYTES)
        self._spans: dict[int, int] = {}

    def call(self, nbytes: int, at: int) -> Call:
        """A launch that reads `nbytes` from offset `at` on."""
        if nbytes not in self._spans:
            packed = struct.pack("2Q", nbytes // 16, read_part(self.device.target, nbytes))
            self._spans[nbytes] = self.device.upload(np.frombuffer(packed, np.uint8), "a span")
        tile = stream_read_tile(self.device.target, nbytes)
        return Call(self.function, tile, [self._spans[nbytes], self.buffer + at, self.never])

    def bandwidth(self) -> float:
        """Bytes per second of one long read."""
        return READ_BYTES / (self._time([self.call(READ_BYTES, 0)]) * 1e-6)

    def microseconds(self, nbytes: int, count: int) -> float:
        """Of one launch that reads `nbytes` cold bytes, `count` or more of them in a row."""
        size = min(max(16, nbytes // 16 * 16), READ_BYTES // 2)
        count = max(count, min(64, -(-CACHED // size)))
        step = -(-size // 256) * 256
        places = [i * step % (READ_BYTES - step) // 256 * 256 for i in range(count)]
        return self._time([self.call(size, at) for at in places]) / count

    def _time(self, calls: list[Call]) -> float:
        replay = Replay(self.device, lambda: _launch(self.device, calls))
        us = replay.microseconds()
        replay.close()
        return us


def _launch(device: Device, calls: Iterable[Call]) -> None:
    for call in calls:
        call.launch(device.stream)


def measure_step(rank: Rank, reader: Reader, bandwidth: float, name: StepName, rows: int, repeats: int) -> StepTime:
    """A step and its ops. `bandwidth` in bytes per second."""
    step, device = rank.step(name, rows), rank.device
    replay = Replay(device, step.launch)
    us = replay.microseconds(repeats)
    outputs = [step.graph.outputs["logits" if name == "verify" else "log_prob"]] * 2
    replay.launch()
    first, again = (_read_after(rank, name, rows, replay, t.name) for t in outputs)
    replay.close()
    distinct = [len(np.unique(ids)) for ids in rank.experts(rows).values()] if name == "verify" and rank.given else []
    experts = float(np.mean(distinct)) if distinct else 0.0
    load = Load(rows, rank.context)
    made = StepTime(name, rows, us, 0, 0.0, len(step.calls), experts, bool((first == again).all()))
    made.bytes = sum(touched(op, load, experts) for op in step.graph.ops)
    made.floor_us = made.bytes / bandwidth * 1e6
    made.ops = op_times(rank, reader, name, rows, load, experts, repeats)
    return made


def _read_after(rank: Rank, name: StepName, rows: int, replay: Replay, tensor: str) -> np.ndarray:
    replay.launch()
    step = rank.step(name, rows)
    return step.read(step.graph.tensors()[tensor], rank.table(name, rows))


def op_times(
    rank: Rank, reader: Reader, name: StepName, rows: int, load: Load, experts: float, repeats: int
) -> list[OpTime]:
    """Every kind of op alone: all its launches of the step in one graph, so that each finds its weights cold."""
    groups: dict[str, list[tuple[Op, Call]]] = {}
    for launch, call in rank.launched(name, rows):
        groups.setdefault(label(launch.kernel.op), []).append((launch.kernel.op, call))
    made = []
    for what, members in groups.items():
        ops = {id(op): op for op, _ in members}
        size = touched(members[0][0], load, experts)
        replay = Replay(rank.device, lambda calls=[c for _, c in members]: _launch(rank.device, calls))  # type: ignore[misc]
        us = replay.microseconds(repeats) / len(ops)
        replay.close()
        read = reader.microseconds(size, len(ops)) if size else 0.0
        made.append(OpTime(what, len(ops), len(members), us, size, read, size * len(ops) >= CACHED))
    return sorted(made, key=lambda t: -t.us * t.count)
