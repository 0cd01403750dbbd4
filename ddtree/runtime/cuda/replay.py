"""A list of launches as one captured graph, and how long it takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cu

from ddtree.runtime.cuda.driver import Device, check


class Replay:
    """What `record` puts into the device's stream, captured once and launched as one graph."""

    def __init__(self, device: Device, record: Callable[[], None]) -> None:
        self.device = device
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(cu.cuStreamBeginCapture(device.stream, mode), "capturing a graph")
        try:
            record()
        finally:
            graph = check(cu.cuStreamEndCapture(device.stream), "capturing a graph")
        self._handle: Any = check(cu.cuGraphInstantiate(graph, 0), "instantiating a graph")
        self._graph: Any = graph
        check(cu.cuGraphUpload(self._handle, device.stream), "uploading a graph")

    def launch(self) -> None:
        """Put the graph into the stream."""
        check(cu.cuGraphLaunch(self._handle, self.device.stream), "launching a graph")

    def microseconds(self, repeats: int = 20, warm: int = 3) -> float:
        """Median time of one launch, from event to event, after `warm` launches that do not count."""
        for _ in range(warm):
            self.launch()
        flags = cu.CUevent_flags.CU_EVENT_DEFAULT
        pairs = [[check(cu.cuEventCreate(flags), "creating an event") for _ in range(2)] for _ in range(repeats)]
        for begin, end in pairs:
            check(cu.cuEventRecord(begin, self.device.stream), "timing a graph")
            self.launch()
            check(cu.cuEventRecord(end, self.device.stream), "timing a graph")
        self.device.synchronize("timing a graph")
        times = [1e3 * check(cu.cuEventElapsedTime(begin, end), "timing a graph") for begin, end in pairs]
        for event in (e for pair in pairs for e in pair):
            cu.cuEventDestroy(event)
        return float(statistics.median(times))

    def close(self) -> None:
        """Free the graph."""
        cu.cuGraphExecDestroy(self._handle)
        cu.cuGraphDestroy(self._graph)
