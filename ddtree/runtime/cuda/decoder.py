"""The decoder of a GPU: prompts through prefill kernels, rounds through captured graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddtree.errors import DeviceError
from ddtree.graph.buckets import bucket
from ddtree.graph.build import Limits
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.step_graph import StepName
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.round import RoundGraph, RoundState
from ddtree.runtime.decoder import Decoder, Round, Sampling, SlotMemory, StepExecutor


class CudaDecoder(Decoder):
    """Rounds are one graph launch each; the host decides nothing inside a round and reads its record afterwards.

    capture  makes the graph of a row capacity; called once per capacity, at the first round that needs it
    request  device addresses of the sampling parameters, per row capacity, are written when a sequence joins
    """

    def __init__(
        self,
        limits: Limits,
        steps: Mapping[StepName, StepExecutor],
        caches: Sequence[SlotMemory],
        *,
        device: Device,
        state: RoundState,
        page_table: int,
        capture: Callable[[int], RoundGraph],
        **sizes: Any,
    ) -> None:
        super().__init__(limits, steps, caches, **sizes)
        self.device, self.state, self.page_table, self._capture = device, state, page_table, capture
        self.graphs: dict[int, RoundGraph] = {}
        self._stale = True  # the device's round state or requests are older than the host's

    def start(self, prompt: Sequence[int], sampling: Sampling, max_tokens: int) -> tuple[int, int]:
        """Prefill in a free slot; see Decoder."""
        self._stale = True
        return super().start(prompt, sampling, max_tokens)

    def end(self, slot: int) -> None:
        """Forget a sequence; see Decoder."""
        self._stale = True
        super().end(slot)

    def round(self) -> dict[int, Round]:
        """One graph launch for every sequence; see Decoder."""
        if not self.slots:
            return {}
        began = time.perf_counter()
        active = len(self.slots)
        budget = min(self.budget, MAX_ROWS // active - 1) if self.limits.block else 0
        graph = self._graph(bucket(active * (budget + 1)))
        self._reserve()
        if self._stale:
            self._write(graph, budget)
        launched = time.perf_counter()
        graph.launch()
        self.state.wait()
        ended = time.perf_counter()
        seconds = {"draft": 0.0, "verify": ended - launched, "commit": 0.0, "host": launched - began}
        return {slot: self._advanced(slot, seconds) for slot in self.slots}

    def _graph(self, rows: int) -> RoundGraph:
        if rows not in self.graphs:
            self.graphs[rows] = self._capture(rows)
            self._stale = True
        return self.graphs[rows]

    def _reserve(self) -> None:
        """Map the pages that the round may fill, and show the table to the GPU when it changed."""
        before = self.pool.table.copy()
        for slot, state in self.slots.items():
            self.pool.reserve(slot, min(self.pool.context, state.committed + self.limits.depths + 1))
        if self._stale or (self.pool.table != before).any():
            self.device.write(self.page_table, self.pool.table)

    def _write(self, graph: RoundGraph, budget: int) -> None:
        values = {name: self._each(name) for name in ("committed", "anchor", "remaining")}
        self.state.write(list(self.slots), values, budget)
        verify = graph.steps["verify"]
        for name, array in self._request().items():
            self.device.write(verify.tensor(name), array)
        self._stale = False

    def _advanced(self, slot: int, seconds: dict[str, float]) -> Round:
        done, state = self.state.result(slot, seconds), self.slots[slot]
        if min(done.emitted, default=-1) < 0:
            raise DeviceError(
                "the model's logits are NaN; the weights or the numerics are broken, no text was made of them"
            )
        n = len(done.emitted)
        state.committed, state.anchor, state.remaining = state.committed + n, done.emitted[-1], state.remaining - n
        return done
