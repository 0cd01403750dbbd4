"""From files to every rank's memory: jobs in threads, results in order, bounded host memory.

Jobs are prepared (read, checked, packed) by several threads. Each rank takes what is for it in the order of the jobs, on a
thread of its own. New jobs start only while all that are under way fit into a fixed number of bytes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ddtree.errors import WeightsError
from ddtree.runtime.launches import Place
from ddtree.runtime.load import Progress, silent
from ddtree.runtime.order import Order

MEMORY = 2 << 30  # bytes of host memory for jobs under way
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


class Work(Protocol):
    """What `run` must know of a job: bytes it reads, most bytes of host memory it takes, and the ranks that get a part."""

    @property
    def nbytes(self) -> int:
        """Bytes read."""

    @property
    def memory(self) -> int:
        """Bytes of host memory."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that get a part."""


J = TypeVar("J", bound=Work)


def run(
    jobs: Sequence[J], prepare: Callable[[J], list[Piece]], sinks: Mapping[int, Sink], progress: Progress = silent, *,
    what: str = "weights", workers: int | None = None, memory: int = MEMORY,
) -> None:  # fmt: skip
    """Do the jobs; the WeightsError of the first one that fails says how far loading came."""
    done, total, held = 0, sum(job.nbytes for job in jobs), 0
    preparing: deque[tuple[J, Future[list[Piece]]]] = deque()
    writing: deque[tuple[J, list[Future[None]]]] = deque()
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
            preparing.append((job, pool.submit(prepare, job)))
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
