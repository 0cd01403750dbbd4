"""Weights from a checkpoint to every rank's memory in one pass over the files, with little host memory.

All headers are checked and all memory is allocated before the first byte is read. Then each matrix (each expert of a stack,
each block of rows of a large matrix) is a job: read its tensors, check them, cut out every rank's part, and pack it, unless the
rank's memory can do that itself. Jobs run in threads in the order of the files; each rank takes its parts in the same order on
a thread of its own. New jobs start only while all that are under way fit into a fixed number of bytes.

A matrix's INT4 codes and scales may lie far apart in a file (its library sorts tensors by dtype). Jobs follow the codes, which
are most of the bytes, so that codes and scales are two sequential streams and nothing waits in memory for its other half.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ddtree.errors import WeightsError
from ddtree.graph.build import DRAFT
from ddtree.graph.model import Model
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import DType, Shard, Weight
from ddtree.runtime.launches import Place
from ddtree.runtime.load import Folders, Progress, open_checkpoint, silent
from ddtree.runtime.order import Order, orders, raw_bytes
from ddtree.runtime.packed import BLOCK, Use, destinations, uses_of
from ddtree.runtime.weights.checkpoint import Checkpoint
from ddtree.runtime.weights.files import OpenFiles
from ddtree.runtime.weights.int4 import WORD, Int4
from ddtree.runtime.weights.layout import Read, stored
from ddtree.runtime.weights.values import check_shape, check_values

MEMORY = 2 << 30  # bytes of host memory for jobs under way
CHUNK = 64 << 20  # bytes of a large matrix that are one job
LANE_JOBS = 4  # jobs whose parts are on their way to the ranks


class Sink(Protocol):
    """One rank's memory for weights. `rearranges`: it packs what comes as it lies in the file."""

    rearranges: bool

    def allocate(self, places: Sequence[Place], nbytes: int) -> None:
        """Memory that all of `places` name; called once for each, before anything is written."""

    def write(self, place: Place, offset: int, data: np.ndarray) -> None:
        """Copy bytes (uint8, flat) to `offset` of a place; `data` belongs to the caller again on return."""

    def rearrange(self, place: Place, offset: int, raw: np.ndarray, order: Order) -> None:
        """Like `write(place, offset, order.apply(raw))`; called only if `rearranges`."""


class HostSink:
    """A rank's weights in host memory. `arrays`: bytes by place; places of one allocation share an array."""

    def __init__(self, *, rearranges: bool = False) -> None:
        self.arrays: dict[Place, np.ndarray] = {}
        self.rearranges = rearranges

    def allocate(self, places: Sequence[Place], nbytes: int) -> None:
        """See Sink."""
        self.arrays.update(dict.fromkeys(places, np.empty(nbytes, np.uint8)))

    def write(self, place: Place, offset: int, data: np.ndarray) -> None:
        """See Sink."""
        self.arrays[place][offset : offset + data.nbytes] = data

    def rearrange(self, place: Place, offset: int, raw: np.ndarray, order: Order) -> None:
        """See Sink."""
        self.write(place, offset, order.apply(raw))


@dataclass(frozen=True)
class Piece:
    """Bytes and where they go: packed, or as they lie in the file with the order into which they are to be brought."""

    ranks: tuple[int, ...]
    place: Place
    offset: int
    data: np.ndarray
    order: Order | None = None

    def deliver(self, sink: Sink) -> None:
        """Hand it to a rank that it is for."""
        if self.order is None:
            sink.write(self.place, self.offset, self.data)
        else:
            sink.rearrange(self.place, self.offset, self.data, self.order)


@dataclass(frozen=True)
class Job:
    """The unit of loading.

    uses    ways in which kernels read the weight      reads   its tensors
    rows    of the first axis of each tensor that are read; all of them if None
    ranks   that get a part
    """

    uses: tuple[Use, ...]
    reads: tuple[Read, ...]
    rows: slice | None
    ranks: tuple[int, ...]

    @property
    def weight(self) -> Weight:
        """What is loaded."""
        return self.reads[0].weight

    @property
    def divided(self) -> bool:
        """Whether ranks get different parts."""
        return self.weight.split is not None and self.weight.shard.size > 1

    def rows_of(self, read: Read) -> slice | None:
        """The rows to read of one of its tensors."""
        return None if read.stored.suffix == "_shape" else self.rows

    @property
    def nbytes(self) -> int:
        """Bytes read."""
        return sum(_nbytes(read, self.rows_of(read)) for read in self.reads)

    @property
    def memory(self) -> int:
        """Most bytes of host memory it takes: what is read, what is packed, and a packer's temporaries for one part."""
        parts = len(self.ranks) if self.divided else 1
        return self.nbytes * (1 + len(self.uses)) + 4 * self.nbytes // parts


def _nbytes(read: Read, rows: slice | None) -> int:
    return read.entry.nbytes if rows is None else read.entry.nbytes // read.entry.shape[0] * (rows.stop - rows.start)


def jobs_of(reads: Iterable[Read], uses: Mapping[str, Sequence[Use]], ranks: Sequence[int]) -> list[Job]:
    """The jobs that load `reads` for `ranks`, in the order of the files."""
    units: dict[tuple[str, int], list[Read]] = {}
    for read in reads:
        units.setdefault((read.weight.name, read.expert), []).append(read)
    jobs = [job for (name, _), mine in units.items() for job in _split(mine, uses[name], tuple(ranks))]
    return sorted(jobs, key=_start)


def _start(job: Job) -> tuple[str, int, int]:
    first = max(job.reads, key=lambda read: read.entry.nbytes).entry
    return str(first.path), first.start, job.rows.start if job.rows else 0


def _split(reads: list[Read], uses: Sequence[Use], ranks: tuple[int, ...]) -> Iterator[Job]:
    """One job, or one for each chunk of rows of a large matrix; a rank's rows are not read together with another's then."""
    w, size = reads[0].weight, reads[0].weight.shard.size
    rows = w.full[0]
    by_rank = w.split == 0 and size > 1
    part = rows // size if by_rank else rows
    blocks = all(use.form().block is not None for use in uses)
    if len(reads) > 1 or w.count or not blocks or reads[0].entry.nbytes <= CHUNK:
        hull = slice(min(ranks) * part, (max(ranks) + 1) * part) if by_rank else None
        yield Job(tuple(uses), tuple(reads), hull, ranks)
        return
    step = max(1, CHUNK * rows // reads[0].entry.nbytes // BLOCK) * BLOCK
    for group in [(r,) for r in ranks] if by_rank else [ranks]:
        origin = group[0] * part if by_rank else 0
        for start in range(0, part, step):
            span = slice(origin + start, origin + min(start + step, part))
            yield Job(tuple(uses), tuple(reads), span, group)


def prepare(job: Job, files: OpenFiles, rearranged: bool) -> list[Piece]:
    """Read, check, cut, and pack what the sinks do not pack themselves (`rearranged`). Raises WeightsError."""
    first = job.rows.start if job.rows else 0
    arrays: dict[str, np.ndarray] = {}
    for read in job.reads:
        data = files.read(read.entry, job.rows_of(read))
        if read.stored.suffix == "_shape":
            check_shape(read, data)
            continue
        check_values(read, data, (first, *[0] * (data.ndim - 1)))
        arrays[read.stored.suffix] = data
    pieces = []
    for group in [(r,) for r in job.ranks] if job.divided else [job.ranks]:
        weight = replace(job.weight, shard=Shard(job.weight.shard.size, group[0]))
        part = _part(weight, arrays, first)
        row = max(0, first - weight.shard.slice(weight.full[0]).start) if weight.split == 0 else first
        plain = [use for use in job.uses if not use.packs][:1]  # those share memory
        for use in [*plain, *(use for use in job.uses if use.packs)]:
            pieces += _pieces(use, part, group, job.reads[0].expert, row // BLOCK, rearranged)
    return pieces


def _pieces(
    use: Use, part: np.ndarray | Int4, ranks: tuple[int, ...], unit: int, block: int, rearranged: bool
) -> list[Piece]:
    """What one use of a part becomes; the part is a stack's `unit`, or begins with a matrix's `block`."""
    form = use.form()

    def offset(name: str) -> int:
        return unit * form.unit[name] + (form.block[name] * block if form.block else 0)

    learnt = orders(use) if rearranged else None
    if learnt is not None:
        raw = raw_bytes(part)
        if all(raw.nbytes % order.source == 0 and order.nbytes % 4 == 0 for order in learnt.values()):
            return [Piece(ranks, use.place(name), offset(name), raw, order) for name, order in learnt.items()]
    return [Piece(ranks, use.place(name), offset(name), packed) for name, packed in use.pack(part).items()]


def _part(weight: Weight, arrays: Mapping[str, np.ndarray], first: int) -> np.ndarray | Int4:
    """A rank's part of what was read from row `first` on, as an op's `pack` wants it."""
    made = {}
    for one in stored(weight):
        if one.suffix == "_shape":
            continue
        rows, *rest = one.part
        if rows.start is not None:
            rows = slice(max(0, rows.start - first), rows.stop - first)
        part = arrays[one.suffix][(rows, *rest)]
        made[one.suffix] = part[None] if weight.count else part
    if weight.dtype is DType.INT4:
        return Int4(made["_packed"].view(WORD), made["_scale"], weight.group)
    return made[""]


def run(
    jobs: Sequence[Job], files: OpenFiles, sinks: Mapping[int, Sink], progress: Progress = silent, *, what: str = "weights",
    workers: int | None = None, memory: int = MEMORY,
) -> None:  # fmt: skip
    """Do the jobs; the error of the first one that fails says how far loading came."""
    done, total, held = 0, sum(job.nbytes for job in jobs), 0
    rearranged = all(sink.rearranges for sink in sinks.values())
    preparing: deque[tuple[Job, Future[list[Piece]]]] = deque()
    writing: deque[tuple[Job, list[Future[None]]]] = deque()
    pool = ThreadPoolExecutor(workers or min(32, os.cpu_count() or 1), "weights")
    lanes = {rank: ThreadPoolExecutor(1, f"rank{rank}") for rank in sinks}

    def finish() -> None:
        """Wait until the oldest job is written."""
        nonlocal done, held
        job, writes = writing.popleft()
        for write in writes:
            write.result()
        done, held = done + job.nbytes, held - job.memory
        progress(what, done, total)

    def deliver() -> None:
        """Hand the oldest prepared job to the ranks."""
        job, future = preparing.popleft()
        try:
            pieces = future.result()
        except WeightsError as e:
            raise WeightsError(
                f"{e} ({done / 1e9:.3f} of {total / 1e9:.3f} GB before it were read without a fault)"
            ) from None
        writing.append((job, [lanes[rank].submit(_write, sinks[rank], rank, pieces) for rank in job.ranks]))
        while len(writing) > LANE_JOBS:
            finish()

    try:
        for job in jobs:
            while held and held + job.memory > memory:
                deliver() if preparing else finish()
            preparing.append((job, pool.submit(prepare, job, files, rearranged)))
            held += job.memory
        while preparing:
            deliver()
        while writing:
            finish()
    finally:
        for executor in (pool, *lanes.values()):
            executor.shutdown(cancel_futures=True)


def _write(sink: Sink, rank: int, pieces: Sequence[Piece]) -> None:
    """A rank's pieces of one job."""
    for piece in pieces:
        if rank in piece.ranks:
            piece.deliver(sink)


def stream_weights(
    model: Model, where: Folders, graphs: Sequence[StepGraph], sinks: Mapping[int, Sink], progress: Progress = silent, *,
    workers: int | None = None, memory: int = MEMORY,
) -> None:  # fmt: skip
    """Load the weights of `graphs`, the steps of any one rank, for every rank that has a sink, from one pass over the files.

    The target's and the drafter's indexes, headers and config.json are checked before memory is allocated; then memory is
    allocated in full before a file is read. Raises WeightsError.
    """
    uses = uses_of(graphs)
    parts = [("weights", model.target, where.target, {n: u for n, u in uses.items() if not n.startswith(DRAFT)})]
    if model.drafter and where.draft:
        parts.append(("drafter", model.drafter, where.draft, {n: u for n, u in uses.items() if n.startswith(DRAFT)}))  # type: ignore[arg-type]
    opened: list[tuple[str, Checkpoint, list[Job]]] = []
    for what, source, folder, mine in parts:
        if mine:
            checkpoint = open_checkpoint(source, folder, [u[0].weight for u in mine.values()])
            reads = checkpoint.match([u[0].weight for u in mine.values()])
            opened.append((what, checkpoint, jobs_of(reads, mine, sorted(sinks))))
    for destination in destinations(uses):
        for sink in sinks.values():
            sink.allocate(destination.places, destination.nbytes)
    for what, checkpoint, jobs in opened:
        with OpenFiles(checkpoint, (read.entry for job in jobs for read in job.reads)) as files:
            run(jobs, files, sinks, progress, what=what, workers=workers, memory=memory)
