"""From a model to a decoder on one GPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddtree.errors import UsageError
from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import Builder, Limits, build_step, steps_of
from ddtree.graph.model import Model
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.step_graph import StepGraph, StepName
from ddtree.graph.tensor import Cache, DType
from ddtree.runtime.accept_trace import AcceptTrace
from ddtree.runtime.cache import CompileCache
from ddtree.runtime.compiler import CompiledKernel, KernelSource, compile_all
from ddtree.runtime.costs import measured_rounds, measured_steps, written
from ddtree.runtime.cuda.budget import BudgetMemory
from ddtree.runtime.cuda.decoder import CudaDecoder
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.loop import DeviceRounds, HostRounds
from ddtree.runtime.cuda.module import Function, load
from ddtree.runtime.cuda.round import Choosing, Forced, RoundParts
from ddtree.runtime.cuda.round_state import RoundState
from ddtree.runtime.cuda.step import CudaStep, RowsBuffer
from ddtree.runtime.decoder import Decoder
from ddtree.runtime.kv import PAGE
from ddtree.runtime.launches import Launch, Place, launches, pack_weights
from ddtree.runtime.load import Folders, Progress, kv_pages, make_decoder, read_weights, silent
from ddtree.templates.budget import budget_tiles
from ddtree.templates.kernel import Tile
from ddtree.templates.program import tuning_of
from ddtree.templates.render import render_tile
from ddtree.templates.round import round_tiles

REQUEST = ("temperature", "top_k", "top_p", "seed")  # inputs of the verify step that a sequence brings along


class CudaCache:
    """One layer's cache on the GPU: pages (or rings) and scratch, BF16, NaN where nothing is stored."""

    def __init__(self, device: Device, layer: Cache, pages: int, sequences: int) -> None:
        self.device, self.ring = device, layer.pages() * PAGE if layer.window is not None else 0
        unit = self.ring or PAGE
        self.unit_bytes, self.scratch_bytes = unit * layer.row_bytes, MAX_ROWS * layer.row_bytes
        units = sequences if self.ring else pages
        self.rows = device.alloc(units * self.unit_bytes, f"cache {layer.name}")
        self.scratch = device.alloc(sequences * self.scratch_bytes, f"tree scratch of {layer.name}")
        device.fill(self.rows, 0xFF, units * self.unit_bytes)
        device.fill(self.scratch, 0xFF, sequences * self.scratch_bytes)

    def poison(self, sequence: int, pages: list[int]) -> None:
        """Forget a sequence, as NumpyCache does."""
        for unit in [sequence] if self.ring else pages:
            self.device.fill(self.rows + unit * self.unit_bytes, 0xFF, self.unit_bytes)
        self.device.fill(self.scratch + sequence * self.scratch_bytes, 0xFF, self.scratch_bytes)


def upload_weights(device: Device, graphs: list[StepGraph], stored: Mapping[str, Any]) -> dict[Place, int]:
    """Every weight on the GPU in its kernels' layout; equal arrays of several ops are uploaded once."""
    addresses: dict[Place, int] = {}
    uploaded: dict[tuple[str, bytes], int] = {}
    for place, array in pack_weights(graphs, stored).items():
        bits = array.view(np.uint16) if array.dtype == DType.BF16.numpy else array
        same = (place.name, np.ascontiguousarray(bits).tobytes()) if bits.nbytes < 1 << 20 else None
        if same is not None and same in uploaded:
            addresses[place] = uploaded[same]
            continue
        addresses[place] = device.upload(bits, f"weight {place.name}")
        if same is not None:
            uploaded[same] = addresses[place]
    return addresses


def compile_functions(
    device: Device, plans: Sequence[Sequence[Launch]], others: Sequence[Tile], progress: Progress = silent
) -> dict[str, Function]:
    """Every kernel of the steps, and of tiles that belong to no op, compiled and loaded, by name; at the largest shared memory
    that any of its launches asks for."""
    tiles = {t.name: t for t in others}
    sources = {t.name: KernelSource(t.name, t.template, render_tile(t), t.smem, t.block) for t in others}
    for kernel in (launch.kernel for plan in plans for launch in plan):
        if kernel.name not in tiles or kernel.tile.smem > tiles[kernel.name].smem:
            tiles[kernel.name] = kernel.tile
            sources[kernel.name] = KernelSource(
                kernel.name, kernel.op.name(), kernel.source, kernel.tile.smem, kernel.tile.block
            )

    def done(count: int, total: int, _: CompiledKernel) -> None:
        progress("kernels", count, total)

    compiled = compile_all(list(sources.values()), [device.target.name], cache=CompileCache(), progress=done)
    return load(device, {k.name: k.cubin for k in compiled}, tiles)


class Program:
    """A model on one GPU: kernels, weights and caches that all its steps share, and the steps themselves."""

    def __init__(
        self,
        model: Model,
        where: Folders,
        device: Device,
        progress: Progress = silent,
        *,
        checked: bool = False,
        trace: AcceptTrace | None = None,
    ) -> None:
        if model.ranks != 1:
            raise UsageError(f"{model.ranks} ranks on one GPU are not supported; use --tp 1 or --device cpu")
        self.model, self.device, self.limits, self.checked = model, device, Limits.of(model), checked
        self.buckets = needed_buckets(self.limits)
        self.graphs = self._graphs()
        features = self.graphs["verify", self.buckets[-1]].outputs.get("features")
        mask_id = model.drafter.spec.mask_id if model.drafter else 0
        self.tiles = round_tiles(self.limits, mask_id, forced=trace is not None)
        self.tiles |= budget_tiles(self.limits, features.row_bytes(1) if features else 0)
        tuning = tuning_of(model, device.target.name)
        self.launches = {key: launches(g, device.target, tuning) for key, g in self.graphs.items()}
        self.functions = compile_functions(device, list(self.launches.values()), list(self.tiles.values()), progress)
        self.state = RoundState(device, self.limits)
        self.sizes = BudgetMemory(device, self.limits) if self.limits.auto else None
        self.forced = self._forced(trace) if trace else None
        self.columns = -(-(model.target.spec.context + MAX_ROWS) // PAGE)
        self.page_table = device.alloc(4 * self.limits.sequences * self.columns, "page table")
        self.caches: dict[str, CudaCache] = {}
        self.shared = self._memory(where, progress)
        self.given = self._given()
        self.arena = device.alloc(max(g.arena for g in self._verify_graphs()), "arena of the verify steps")
        self.tables: dict[StepName, RowsBuffer] = {}
        self._steps: dict[tuple[StepName, int], CudaStep] = {}

    def step(self, name: StepName, rows: int = 0) -> CudaStep:
        """A step, made once; `rows` is the capacity of a verify step."""
        key = (name, rows if name == "verify" else 0)
        if key not in self._steps:
            self._steps[key] = CudaStep(
                self.device, self.graphs[key], self.launches[key], self.functions, self.shared, self._table(name),
                checked=self.checked, given=self.given[name], arena=self.arena if name == "verify" else 0,
            )  # fmt: skip
        return self._steps[key]

    def parts(self) -> RoundParts:
        """The steps of a round at every row capacity that rounds may need, and the kernels between them."""
        verify = {rows: self.step("verify", rows) for rows in self.buckets}
        draft = self.step("draft") if self.limits.block else None
        choosing = Choosing(self.sizes, self.step("context"), self.step("store")) if self.sizes else None
        return RoundParts(
            self.device,
            self.state,
            draft,
            verify,
            self.step("commit"),
            choosing,
            self.tiles,
            self.functions,
            self.forced,
        )

    def _forced(self, trace: AcceptTrace) -> Forced:
        turns = np.zeros(self.limits.sequences, np.int32)
        return Forced(self.device.upload(trace.table, "accepted lengths"), self.device.upload(turns, "rounds"))

    def _verify_graphs(self) -> list[StepGraph]:
        return [graph for (name, _), graph in self.graphs.items() if name == "verify"]

    def _table(self, name: StepName) -> RowsBuffer:
        """The row table of a step; verify steps of all capacities share one, and so do the two ways to commit."""
        name = "commit" if name == "store" else name
        if name not in self.tables:
            alias = {"committed": self.state.arrays["committed"], "pages": self.page_table}
            rows = max(graph.rows for (step, _), graph in self.graphs.items() if step == name)
            self.tables[name] = RowsBuffer(self.device, rows, self.limits.sequences, self.columns, alias)
        return self.tables[name]

    def _given(self) -> dict[StepName, dict[str, int]]:
        """Tensors that live outside a step's arena, by step and name: those that steps of a round exchange with each other
        or with the kernels between them, so that no copy and no row capacity comes between."""
        arrays, commit = self.state.arrays, self.graphs["commit", 0].inputs
        needed: dict[str, int] = {name: t.nbytes for name, t in commit.items()}
        for graph in self._verify_graphs():
            exchanged = {
                **graph.inputs,
                **{n: graph.outputs[n] for n in (*commit, "emitted", "kept", "done", "chosen")},
            }
            for name, t in exchanged.items():
                needed[name] = max(needed.get(name, 0), t.nbytes)
        verify = {n: arrays.get(n) or self.device.alloc(size, f"exchanged {n}") for n, size in needed.items()}
        given: dict[StepName, dict[str, int]] = {name: {} for name in steps_of(self.model)}
        given |= {"verify": verify, "commit": {name: verify[name] for name in commit}}
        if self.limits.auto:
            given["store"] = {name: verify[name] for name in self.graphs["store", 0].inputs}
        given["draft"] = {"anchor": arrays["anchor"], "budget": arrays["budgets"]}
        return given

    def _graphs(self) -> dict[tuple[StepName, int], StepGraph]:
        builder = Builder(self.model)
        graphs: dict[tuple[StepName, int], StepGraph] = {
            (name, 0): build_step(self.model, name, 0, builder) for name in steps_of(self.model) if name != "verify"
        }
        for rows in self.buckets:
            graphs["verify", rows] = build_step(self.model, "verify", 0, Builder(self.model, rows))
        return graphs

    def _memory(self, where: Folders, progress: Progress) -> dict[Place, int]:
        """Weights and caches on the GPU, by place."""
        graphs = list(self.graphs.values())
        weights = {n: w for g in graphs for n, w in g.weights().items()}
        shared = upload_weights(self.device, graphs, read_weights(self.model, where, weights, progress))
        for name, layer in {n: c for g in graphs for n, c in g.caches().items()}.items():
            cache = self.caches[name] = CudaCache(self.device, layer, kv_pages(self.model), self.limits.sequences)
            shared[Place("pages", name)], shared[Place("scratch", name)] = cache.rows, cache.scratch
        self.device.synchronize("loading weights")
        return shared


def cuda_decoder(
    model: Model,
    where: Folders,
    device: Device,
    *,
    captured: bool = True,
    checked: bool = False,
    trace: AcceptTrace | None = None,
    progress: Progress = silent,
) -> Decoder:  # fmt: skip
    """A decoder on one GPU, whose rounds loop where the YAML's `decode.loop_on` says. `captured=False` launches kernel by
    kernel from the host, step by step, for comparison; `checked` also waits after each kernel, so that a fault names its op
    and YAML line. `trace` forces accepted lengths.
    """
    program = Program(model, where, device, progress, checked=checked, trace=trace)
    caches = list(program.caches.values())
    steps = {name: program.step(name, program.buckets[-1]) for name in steps_of(model)}
    given = written(model, device.target.name)
    if checked or not captured:
        decoder = make_decoder(model, steps, caches, trace=trace)
        if program.limits.auto:
            decoder.use(given or measured_steps(decoder))
        return decoder
    on = DeviceRounds if model.target.spec.decode.loop_on == "device" else HostRounds
    request = {name: program.given["verify"][name] for name in REQUEST}
    kind = functools.partial(
        CudaDecoder, device=device, state=program.state, page_table=program.page_table, request=request, rounds=on(program.parts()),
        sizes=program.sizes, turns=program.forced.turns if program.forced else 0,
    )  # fmt: skip
    decoder = make_decoder(model, steps, caches, kind, trace=trace)
    if program.limits.auto:
        decoder.use(given or measured_rounds(decoder))
    return decoder
