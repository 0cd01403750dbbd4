"""Several tensor-parallel ranks in one process: their memory, their steps as graphs, and the messages between them.

Every rank has a GPU of its own, or several share one (a simulated group, for tests). Each rank runs one graph per step; the
ranks' graphs meet in their collectives (include/ddtree/ranks.cuh), the host only starts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from cuda.bindings import driver as cu

from ddtree.errors import DeviceError, UsageError
from ddtree.graph.build import Limits, build_ranks, steps_of
from ddtree.graph.model import Model
from ddtree.graph.op import Op
from ddtree.graph.rows import MAX_ROWS, RowTable
from ddtree.graph.step_graph import StepGraph, StepName
from ddtree.runtime.costs import measured_steps, written
from ddtree.runtime.cuda.driver import Device, check
from ddtree.runtime.cuda.load import CudaCache, compile_functions, upload_weights
from ddtree.runtime.cuda.module import Function
from ddtree.runtime.cuda.replay import Replay
from ddtree.runtime.cuda.step import CudaStep, RowsBuffer
from ddtree.runtime.decoder import Decoder
from ddtree.runtime.kv import PAGE
from ddtree.runtime.launches import Launch, Place, launches
from ddtree.runtime.load import Folders, Progress, kv_pages, make_decoder, read_weights, silent
from ddtree.templates.group import (
    BUFFERS,
    EMPTY,
    FAILED,
    MISSING,
    ONE_SHOT,
    STRUCT_BYTES,
    WORD,
    buffer_words,
    pack_group,
    silent_ranks,
)
from ddtree.templates.program import tuning_of
from ddtree.templates.target import Target

LIMIT = 2.0  # seconds that a rank waits for another


def sharing(devices: Sequence[Device]) -> int:
    """Most ranks that share a GPU."""
    return max(Counter(device.index for device in devices).values())


def share_of(target: Target, ranks: int) -> Target:
    """The target of one of `ranks` ranks on a GPU: kernels whose blocks wait for one another ask for one or two on each SM, and
    the blocks of all ranks must be resident together."""
    return target if ranks == 1 else replace(target, sms=max(1, target.sms // (2 * ranks)))


def require_room(plans: Sequence[Sequence[Launch]], sms: int, ranks: int) -> None:
    """Raise DeviceError unless all blocks of `ranks` ranks that wait for others are resident together on a GPU, whatever
    kernels they belong to: as many SMs as blocks, so that one that waits for its SM finds one without any."""
    tiles = (launch.kernel.tile for plan in plans for launch in plan)
    for tile in (t for t in tiles if t.coresident and ranks > 1):
        blocks = tile.grid[0] * tile.grid[1] * tile.grid[2]
        if blocks * ranks > sms:
            raise DeviceError(
                f"{ranks} ranks on one GPU: {blocks} blocks of kernel {tile.name} on each of them wait for one another and "
                f"must be resident together, {sms} SMs hold {sms // ranks} for each; use fewer ranks"
            )


def enable_peers(devices: Sequence[Device]) -> None:
    """Let every GPU of a group write to the memory of the others. Raises DeviceError where the machine does not allow it."""
    for a in devices:
        a.make_current()
        for b in devices:
            if a.index == b.index:
                continue
            if not check(cu.cuDeviceCanAccessPeer(a.handle, b.handle), "asking for peer access"):
                raise DeviceError(
                    f"GPU {a.index} cannot write to GPU {b.index}; peer access needs a common PCIe root or NVLink, and IOMMU "
                    "and ACS switched off"
                )
            status = cu.cuCtxEnablePeerAccess(b.context, 0)
            if status[0] != cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
                check(status, f"enabling access from GPU {a.index} to GPU {b.index}")


class Links:
    """The mailboxes of a group and each rank's `struct Group`, for the messages of the given ops.

    one_shot  bytes of the longest message that goes to every rank as a whole      limit  seconds that a wait may take
    """

    def __init__(
        self, devices: Sequence[Device], ops: Sequence[Op], *, one_shot: int = ONE_SHOT, limit: float = LIMIT
    ) -> None:
        self.devices, self.limit = list(devices), limit
        words = buffer_words(ops, one_shot // WORD)
        size = BUFFERS * words * WORD
        mailboxes: list[int] = []
        self.addresses: list[int] = []
        for rank, device in enumerate(self.devices):
            device.make_current()
            mailboxes.append(device.alloc(size, f"mailbox of rank {rank}"))
            device.fill(mailboxes[-1], EMPTY, size)
            self.addresses.append(device.alloc(STRUCT_BYTES, f"group of rank {rank}"))
        failures = [address + FAILED for address in self.addresses]
        for rank, device in enumerate(self.devices):
            packed = pack_group(rank, mailboxes, failures, buffer=words, one_shot=one_shot // WORD, limit=limit)
            device.make_current()
            device.write(self.addresses[rank], np.frombuffer(packed, np.uint8))
            device.synchronize("making a group")

    def check(self, what: str) -> None:
        """Raise DeviceError with the rank's name when one did not come to a message. Waits for all streams."""
        seen = []
        for device, address in zip(self.devices, self.addresses, strict=True):
            device.make_current()
            seen.append(device.read(address + FAILED, ((MISSING - FAILED) // 4 + 1,), np.uint32))
        if not any(words[0] for words in seen):
            return
        missing = [int(words[-1]) for words in seen]
        guilty = silent_ranks(missing)
        who = f"rank {', '.join(map(str, guilty))}" if guilty else "no rank in particular (a message was lost)"
        raise DeviceError(
            f"{what}: the other ranks waited {self.limit:g} s for {who}; all have ended, start again. A rank that does not "
            "come has stopped, or its GPU cannot write to the others'"
        )


class Member:
    """One rank: its GPU, weights and caches, and its steps, captured as graphs."""

    def __init__(
        self,
        model: Model,
        where: Folders,
        device: Device,
        graphs: Mapping[StepName, StepGraph],
        group: int,
        progress: Progress,
    ) -> None:
        self.device, self.graphs = device, dict(graphs)
        device.make_current()
        mine = list(self.graphs.values())
        weights = {n: w for g in mine for n, w in g.weights().items()}
        self.shared = upload_weights(device, mine, read_weights(model, where, weights, progress))
        self.shared[Place("group")] = group
        self.caches: dict[str, CudaCache] = {}
        sequences = model.target.spec.decode.sequences
        for name, layer in {n: c for g in mine for n, c in g.caches().items()}.items():
            cache = self.caches[name] = CudaCache(device, layer, kv_pages(model), sequences)
            self.shared[Place("pages", name)], self.shared[Place("scratch", name)] = cache.rows, cache.scratch
        self.columns = -(-(model.target.spec.context + MAX_ROWS) // PAGE)
        self.steps: dict[StepName, CudaStep] = {}
        self.replays: dict[StepName, Replay] = {}

    def prepare(
        self, name: StepName, plan: Sequence[Launch], functions: Mapping[str, Function], sequences: int, *, early: bool
    ) -> None:
        """Capture a step. `early`: launches may begin while the one before still runs."""
        self.device.make_current()
        graph = self.graphs[name]
        table = RowsBuffer(self.device, graph.rows, sequences, self.columns)
        step = self.steps[name] = CudaStep(self.device, graph, plan, functions, self.shared, table)

        def record() -> None:
            for call in step.calls:
                call.launch(self.device.stream, early=early)

        self.replays[name] = Replay(self.device, record)
        self.device.synchronize("capturing a step")


class GroupStep:
    """A StepExecutor over all ranks: every rank gets the inputs, one graph per rank, rank 0's outputs."""

    def __init__(self, name: StepName, members: Sequence[Member], links: Links) -> None:
        self.name, self.members, self.links = name, list(members), links

    def upload(self, inputs: Mapping[str, np.ndarray], rows: RowTable) -> None:
        """Give every rank the inputs and the row table, all of them before any rank waits for another."""
        for member in self.members:
            member.device.make_current()
            member.steps[self.name].upload(inputs, rows)

    def launch(self, ranks: Sequence[int]) -> None:
        """Start the given ranks' graphs, then wait for all and raise DeviceError if one did not come."""
        for rank in ranks:
            self.members[rank].replays[self.name].launch()
        for member in self.members:
            member.device.synchronize(f"step {self.name}")
        self.links.check(f"step {self.name}")

    def run(self, inputs: Mapping[str, np.ndarray], rows: RowTable) -> dict[str, np.ndarray]:
        """Execute the step on all ranks; see CudaStep."""
        self.upload(inputs, rows)
        self.launch(range(len(self.members)))
        first = self.members[0]
        first.device.make_current()
        step = first.steps[self.name]
        return {name: step.read(t, rows) for name, t in step.graph.outputs.items()}


class RankCache:
    """A rank's cache memory, forgotten on that rank's GPU."""

    def __init__(self, cache: CudaCache) -> None:
        self.cache = cache

    def poison(self, sequence: int, pages: list[int]) -> None:
        """Forget a sequence."""
        self.cache.device.make_current()
        self.cache.poison(sequence, pages)


def group_steps(
    model: Model, where: Folders, devices: Sequence[Device], *, one_shot: int = ONE_SHOT, limit: float = LIMIT, progress: Progress = silent
) -> tuple[dict[StepName, GroupStep], list[Member]]:  # fmt: skip
    """Every step of a model over ranks on the given devices, rank by rank; a device may be opened several times. Raises
    DeviceError before anything runs when ranks of one GPU do not fit on it together."""
    if len(devices) != model.ranks:
        raise UsageError(f"{model.ranks} ranks want as many GPUs, {len(devices)} were given")
    enable_peers(devices)
    together, sequences = sharing(devices), Limits.of(model).sequences
    target = share_of(devices[0].target, together)
    graphs = {name: build_ranks(model, name) for name in steps_of(model)}
    tuning = tuning_of(model, target.name)
    plans = {
        name: launches(ranks[0], target, tuning) for name, ranks in graphs.items()
    }  # a rank differs only in memory
    require_room(list(plans.values()), devices[0].sms, together)
    functions: dict[int, dict[str, Function]] = {}
    for device in devices:
        if device.index not in functions:
            device.make_current()
            functions[device.index] = compile_functions(device, list(plans.values()), [], progress)
    links = Links(devices, [op for ranks in graphs.values() for op in ranks[0].ops], one_shot=one_shot, limit=limit)
    members = [
        Member(model, where, device, {n: g[rank] for n, g in graphs.items()}, links.addresses[rank], progress)
        for rank, device in enumerate(devices)
    ]
    for member in members:
        for name, plan in plans.items():
            member.prepare(name, plan, functions[member.device.index], sequences, early=together == 1)
    return {name: GroupStep(name, members, links) for name in graphs}, members


def group_decoder(
    model: Model, where: Folders, devices: Sequence[Device], *, one_shot: int = ONE_SHOT, progress: Progress = silent
) -> Decoder:
    """A decoder whose steps run on all ranks, started by the host; see `group_steps`."""
    steps, members = group_steps(model, where, devices, one_shot=one_shot, progress=progress)
    caches = [RankCache(cache) for member in members for cache in member.caches.values()]
    decoder = make_decoder(model, steps, caches)
    if decoder.limits.auto:
        decoder.use(written(model, devices[0].target.name) or measured_steps(decoder))
    return decoder
