"""Whole steps through emulated kernels: the very launches of the GPU runtime, on guarded memory of the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from ddtree.graph.build import Builder, build_step, steps_of
from ddtree.graph.model import Model
from ddtree.graph.rows import MAX_ROWS, RowTable
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import Cache, DType, Tensor
from ddtree.runtime.decoder import Decoder
from ddtree.runtime.kv import PAGE
from ddtree.runtime.launches import Launch, Place, launches, pack_weights
from ddtree.runtime.load import Folders, folders, kv_pages, make_decoder, read_weights
from ddtree.templates.kernel import Tile
from ddtree.templates.target import Target, target
from tests.emulator import Module, guarded
from tests.ops.memory import RowsMemory, from_device, poison, to_device
from tests.ops.operands import live


@cache
def _module(source: str, name: str) -> Module:
    return Module(source, [name])


class EmulatedCache:
    """One layer's cache as kernels see it: pages (or rings) and scratch, BF16, NaN where nothing is stored."""

    def __init__(self, layer: Cache, pages: int, sequences: int) -> None:
        self.ring = layer.pages() * PAGE if layer.window is not None else 0
        shape = (sequences, self.ring) if self.ring else (pages, PAGE)
        self.rows = guarded(poison((*shape, *layer.row), layer.dtype))
        self.scratch = guarded(poison((sequences, MAX_ROWS, *layer.row), layer.dtype))

    def poison(self, sequence: int, pages: list[int]) -> None:
        """Forget a sequence, as NumpyCache does."""
        self.rows[sequence if self.ring else pages] = 0xFFFF
        self.scratch[sequence] = 0xFFFF


class EmulatedStep:
    """A StepExecutor whose kernels run on the emulator. Tensors lie in one arena as the memory plan says."""

    def __init__(self, graph: StepGraph, shared: Mapping[Place, np.ndarray], where: Target) -> None:
        self.graph, self.shared = graph, shared
        self.launches: list[Launch] = launches(graph, where, {})
        self.arena = guarded(np.zeros(max(1, graph.arena), np.uint8))
        self.tensors = graph.tensors()
        self.workspaces = {
            place: guarded(np.full(w.nbytes, w.fill, np.uint8))
            for x in self.launches
            for place, w in x.workspaces.items()
        }

    def run(self, inputs: Mapping[str, np.ndarray], rows: RowTable) -> dict[str, np.ndarray]:
        """Poison the arena, then launch every kernel of the step in order."""
        given = {t.name: self._input(t, inputs[name]) for name, t in self.graph.inputs.items()}
        table = RowsMemory(rows)  # a name of its own: the struct points into its arrays
        self.launch(given, table.struct)
        return {name: self.read(t, live(t, rows)) for name, t in self.graph.outputs.items()}

    def launch(self, given: Mapping[str, np.ndarray], table: np.ndarray) -> None:
        """Launch every kernel on inputs in guarded memory and a `struct Rows`."""
        self.arena[:] = 0xFF
        for launch in self.launches:
            tile = launch.kernel.tile
            args = [self._address(place, given, table) for place in launch.places]
            run_tile(tile, launch.kernel.source, args)

    def _address(self, place: Place, given: Mapping[str, np.ndarray], table: np.ndarray) -> np.ndarray | int:
        if place.kind == "rows":
            return table
        if place.kind == "tensor":
            known = given.get(place.name)
            return known if known is not None else self.arena.ctypes.data + self.graph.offsets[place.name]
        return self.workspaces[place] if place.kind == "workspace" else self.shared[place]

    @staticmethod
    def _input(t: Tensor, array: np.ndarray) -> np.ndarray:
        full = poison(t.shape, t.dtype)
        full[: len(array)] = to_device(array, t.dtype)
        return guarded(full)

    def read(self, t: Tensor, rows: int) -> np.ndarray:
        """The first rows of a tensor in the arena."""
        stored = np.dtype(np.uint16) if t.dtype is DType.BF16 else t.dtype.numpy
        at = self.graph.offsets[t.name]
        return from_device(self.arena[at : at + t.nbytes].view(stored).reshape(t.shape)[:rows], t.dtype)


def run_tile(tile: Tile, source: str, args: list[np.ndarray | int]) -> None:
    """One launch on the emulator."""
    _module(source, tile.name).launch(tile.name, tile.grid, tile.block, args, tile.smem, cooperative=tile.coresident)


def emulated_decoder(model: Model, where: Folders | None = None, *, name: str = "compute_120f") -> Decoder:
    """A decoder whose every step is emulated kernels."""
    where, builder = where or folders(model, None, None), Builder(model)
    graphs = [build_step(model, step, 0, builder) for step in steps_of(model)]
    shared, caches = rank_memory(model, graphs, where)
    steps = {g.name: EmulatedStep(g, shared, target(name)) for g in graphs}
    return make_decoder(model, steps, caches)


def rank_memory(
    model: Model, graphs: Sequence[StepGraph], where: Folders
) -> tuple[dict[Place, np.ndarray], list[EmulatedCache]]:
    """Weights and caches of one rank by place, and the caches by themselves."""
    sequences = model.target.spec.decode.sequences
    weights = {n: w for g in graphs for n, w in g.weights().items()}
    shared = {p: guarded(_bits(a)) for p, a in pack_weights(graphs, read_weights(model, where, weights)).items()}
    caches = {n: EmulatedCache(c, kv_pages(model), sequences) for g in graphs for n, c in g.caches().items()}
    for n, c in caches.items():
        shared[Place("pages", n)], shared[Place("scratch", n)] = c.rows, c.scratch
    return shared, list(caches.values())


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.view(np.uint16) if array.dtype == DType.BF16.numpy else array)


KIMI_TINY = Path(__file__).parents[2] / "models" / "kimi_tiny.yaml"
