"""The streaming load into a GPU: the bytes that packing on the host gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ddtree.graph.build import build_step, steps_of
from ddtree.graph.model import load
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.load import compile_functions
from ddtree.runtime.cuda.sink import DeviceSink, loading_tiles
from ddtree.runtime.delivery import HostSink
from ddtree.runtime.load import folders
from ddtree.runtime.stream import stream_weights

MODELS = Path(__file__).parents[2] / "models"


def test_every_weight_of_two_ranks(device: Device) -> None:
    model = load(MODELS / "kimi_tiny.yaml", ranks=2)
    graphs, where = [build_step(model, step) for step in steps_of(model)], folders(model, None, None)
    host = {0: HostSink(), 1: HostSink()}
    stream_weights(model, where, graphs, host)
    functions = compile_functions(device, [], loading_tiles(device.target))
    with DeviceSink(device, functions) as first, DeviceSink(device, functions) as second:
        stream_weights(model, where, graphs, {0: first, 1: second})
    for rank, sink in enumerate((first, second)):
        for place, array in host[rank].arrays.items():
            np.testing.assert_array_equal(device.read(sink.addresses[place], array.shape, np.uint8), array, str(place))
