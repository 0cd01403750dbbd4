"""One rank of a model alone on a GPU, with random weights: the real kernels on real bytes, without its group and without text."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ddtree.graph.buckets import bucket
from ddtree.graph.build import Builder, Limits, build_step
from ddtree.graph.model import Model
from ddtree.graph.ops import ExpertMlp
from ddtree.graph.passes.alone import alone, given_routing
from ddtree.graph.rows import MAX_ROWS, RowTable
from ddtree.graph.step_graph import StepGraph, StepName
from ddtree.graph.tensor import DType, Tensor
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.load import CudaCache, compile_functions
from ddtree.runtime.cuda.module import Call, Function
from ddtree.runtime.cuda.step import CudaStep, RowsBuffer
from ddtree.runtime.kv import PAGE
from ddtree.runtime.launches import Launch, Place, launches
from ddtree.runtime.load import Progress, silent
from ddtree.runtime.random_weights import RandomArray, random_arrays
from ddtree.templates.measure import random_fill_tile
from ddtree.templates.program import tuning_of


def independent_experts(seed: int, layer: int, experts: int, top_k: int) -> np.ndarray:
    """[64, top_k] int32: distinct experts of each row, uniform and independent of the other rows; a row's choice is the same
    in every company."""
    rng = np.random.default_rng([seed, layer])
    return rng.random((MAX_ROWS, experts)).argsort(axis=1)[:, :top_k].astype(np.int32)


def random_tree(rows: int, depths: int, context: int, seed: int) -> RowTable:
    """A tree of `rows` nodes at most `depths` deep below its root, behind `context` committed positions of sequence 0.

    The first n rows of a larger tree are the tree of n rows, so that a row's path is the same in every company.
    """
    rng = np.random.default_rng(seed)
    parent, depth = [-1], [0]
    for _ in range(rows - 1):
        may = [i for i, d in enumerate(depth) if d < depths]
        parent.append(int(rng.choice(may)))
        depth.append(depth[parent[-1]] + 1)
    return RowTable(
        np.zeros(rows, np.int32),
        np.asarray(depth, np.int32) + context,
        np.asarray(parent, np.int32),
        np.arange(rows, dtype=np.int32),
        np.array([context], np.int32),
        np.zeros((1, 0), np.int32),
        tree=True,
    )


class RandomFiller:
    """Fills device memory from a counter-based generator (runtime/random_weights.py)."""

    def __init__(self, device: Device, function: Function, seed: int) -> None:
        self.device, self.function, self.seed = device, function, seed
        self._templates: dict[int, tuple[int, int, np.ndarray]] = {}
        self._turn = 0

    def fill(self, address: int, nbytes: int, base: np.ndarray, mask: np.ndarray) -> None:
        """Write `nbytes` at `address`, the template over and over."""
        base_at, mask_at = self._template(base, mask)
        self._turn += 1
        key = self.seed << 32 | self._turn
        packed = np.frombuffer(struct.pack("3Q", nbytes // 4, base.size, key), np.uint8)
        what = self.device.upload(packed, "random fill")
        Call(self.function, self.function.tile, [what, base_at, mask_at, address]).launch(self.device.stream)

    def _template(self, base: np.ndarray, mask: np.ndarray) -> tuple[int, int]:
        if id(base) not in self._templates:
            base_at, mask_at = (
                self.device.upload(base, "a weight's template"),
                self.device.upload(mask, "a template's mask"),
            )
            self._templates[id(base)] = base_at, mask_at, base  # `base` stays alive, so that its id is nobody else's
        return self._templates[id(base)][:2]


class Rank:
    """A rank's verify steps at several row counts, and its draft step, on one set of random weights and one context.

    context  committed positions of the only sequence      given  the experts are chosen by `independent_experts`
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        rank: int,
        rows: Sequence[int],
        context: int,
        *,
        given: bool = True,
        draft: bool = False,
        seed: int = 1,
        progress: Progress = silent,
    ) -> None:
        self.model, self.device, self.context, self.seed = model, device, context, seed
        self.limits = Limits.of(model)
        self.given = given
        self.graphs: dict[tuple[StepName, int], StepGraph] = {
            ("verify", n): self._graph("verify", rank, bucket(n)) for n in rows
        }
        if draft:
            self.graphs["draft", self.limits.block] = self._graph("draft", rank, MAX_ROWS)
        tuning = tuning_of(model, device.target.name)
        self.launches = {key: launches(g, device.target, tuning) for key, g in self.graphs.items()}
        fill = random_fill_tile(device.target)
        self.functions = compile_functions(device, list(self.launches.values()), [fill], progress)
        self.filler = RandomFiller(device, self.functions[fill.name], seed)
        self.pages = np.random.default_rng(seed).permutation(-(-(context + MAX_ROWS) // PAGE)).astype(np.int32)
        self.weight_bytes = 0
        self.shared = self._memory(progress)
        self._steps: dict[tuple[StepName, int], CudaStep] = {}

    def _graph(self, step: StepName, rank: int, capacity: int) -> StepGraph:
        graph = alone(build_step(self.model, step, rank, Builder(self.model, capacity)))
        return given_routing(graph) if self.given else graph

    def _memory(self, progress: Progress) -> dict[Place, int]:
        graphs = list(self.graphs.values())
        arrays = list(random_arrays(graphs))
        total, shared = sum(a.nbytes for a in arrays), {}
        for array in arrays:
            shared[array.place] = self._weight(array)
            self.weight_bytes += array.nbytes
            progress("random weights", self.weight_bytes, total)
        one = np.array([0x3F003F00], np.uint32), np.array([0x807F807F], np.uint32)  # bf16, magnitudes 1/2 to 1
        for name, layer in {n: c for g in graphs for n, c in g.caches().items()}.items():
            cache = CudaCache(self.device, layer, len(self.pages), self.limits.sequences)
            units = self.limits.sequences if cache.ring else len(self.pages)
            self.filler.fill(cache.rows, units * cache.unit_bytes, *one)
            shared[Place("pages", name)], shared[Place("scratch", name)] = cache.rows, cache.scratch
        self.device.synchronize("filling random weights")
        return shared

    def _weight(self, array: RandomArray) -> int:
        address = self.device.alloc(array.nbytes, f"weight {array.place.name}")
        self.filler.fill(address, array.nbytes, array.base, array.mask)
        return address

    def step(self, name: StepName, rows: int) -> CudaStep:
        """A step with its inputs and its row table in place, ready to be launched any number of times."""
        if (name, rows) not in self._steps:
            graph = self.graphs[name, rows]
            table = self.table(name, rows)
            buffer = RowsBuffer(self.device, graph.rows, self.limits.sequences, table.pages.shape[1])
            made = CudaStep(self.device, graph, self.launches[name, rows], self.functions, self.shared, buffer)
            made.upload(self._inputs(graph, table), table)
            self._steps[name, rows] = made
        return self._steps[name, rows]

    def launched(self, name: StepName, rows: int) -> list[tuple[Launch, Call]]:
        """The launches of a step with their calls, in order."""
        return list(zip(self.launches[name, rows], self.step(name, rows).calls, strict=True))

    def table(self, name: StepName, rows: int) -> RowTable:
        """The rows of a step: a random tree, or the drafter's block."""
        table = random_tree(rows, self.limits.depths, self.context, self.seed)
        if name == "draft":
            table.position = np.arange(self.context, self.context + rows, dtype=np.int32)
            table.parent, table.tree = np.full(rows, -1, np.int32), False
            table.wanted = np.arange(1, 1 + self.limits.depths, dtype=np.int32)
        sequences = self.limits.sequences
        table.committed = np.zeros(sequences, np.int32)
        table.committed[0] = self.context
        table.pages = np.full((sequences, len(self.pages)), -1, np.int32)
        table.pages[0] = self.pages
        return table

    def experts(self, rows: int) -> dict[str, np.ndarray]:
        """The given choice of every layer's experts, [rows, top_k], by tensor name."""
        chosen = [op.ids for op in self.graphs["verify", rows].ops if isinstance(op, ExpertMlp)]
        return {
            ids.name: independent_experts(self.seed, layer, self._experts, ids.shape[1])[:rows]
            for layer, ids in enumerate(chosen)
        }

    @property
    def _experts(self) -> int:
        return next((op.gate.shape[0] for g in self.graphs.values() for op in g.ops if isinstance(op, ExpertMlp)), 0)

    def _inputs(self, graph: StepGraph, table: RowTable) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        vocab = int(self.model.target.names["vocab"])
        given = self.experts(len(table)) if self.given and graph.name == "verify" else {}
        ids = rng.integers(0, vocab, MAX_ROWS).astype(np.int32)[: len(table)]
        budget = np.full(self.limits.sequences, self.limits.nodes - 1, np.int32)
        known = {"ids": ids, "budget": budget, "remaining": np.full(self.limits.sequences, 1 << 20, np.int32)} | given

        def neutral(t: Tensor) -> np.ndarray:  # greedy, no filter
            return np.full(
                t.shape, 1.0 if t.name == "top_p" else 0.0, np.float32 if t.dtype is DType.FP32 else t.dtype.numpy
            )

        return {name: known.get(name, neutral(t)) for name, t in graph.inputs.items()}
