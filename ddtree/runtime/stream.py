"""Weights from a checkpoint to every rank's memory in one pass over the files, with little host memory.

All headers are checked and all memory is allocated before the first byte is read. Then each matrix (each expert of a stack,
each block of rows of a large matrix) is a job: read its tensors, check them, cut out every rank's part, and pack it, unless the
rank's memory can do that itself. Jobs are done in the order of the files (runtime/delivery.py).

A matrix's INT4 codes and scales may lie far apart in a file (its library sorts tensors by dtype). Jobs follow the codes, which
are most of the bytes, so that codes and scales are two sequential streams and nothing waits in memory for its other half.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ddtree.graph.build import DRAFT
from ddtree.graph.model import Model
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import DType, Shard, Weight
from ddtree.runtime.delivery import MEMORY, Piece, Sink, run
from ddtree.runtime.load import Folders, Progress, open_checkpoint, silent
from ddtree.runtime.order import orders, raw_bytes
from ddtree.runtime.packed import BLOCK, Use, destinations, uses_of
from ddtree.runtime.weights.checkpoint import Checkpoint
from ddtree.runtime.weights.files import OpenFiles
from ddtree.runtime.weights.int4 import WORD, Int4
from ddtree.runtime.weights.layout import Read, stored
from ddtree.runtime.weights.values import check_shape, check_values

CHUNK = 64 << 20  # bytes of a large matrix that are one job


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
    rearranged = all(sink.rearranges for sink in sinks.values())
    for use in (use for of_weight in uses.values() for use in of_weight if rearranged):
        orders(use)  # learnt here, once; in the threads each would learn them for itself
    for destination in destinations(uses):
        for sink in sinks.values():
            sink.allocate(destination.places, destination.nbytes)
    for what, checkpoint, jobs in opened:
        with OpenFiles(checkpoint, (read.entry for job in jobs for read in job.reads)) as files:
            work = partial(prepare, files=files, rearranged=rearranged)
            run(jobs, work, sinks, progress, what=what, workers=workers, memory=memory)
