"""Weights that are packed already: one file for each rank, with checksums, read at the speed of the disk.

A file is in safetensors format: one tensor of bytes for each piece of memory, named by the place that kernels look for. Its
metadata holds digests of the layouts, so that files of other kernels are refused, and a CRC-32 of every 64 MB.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ddtree.errors import UsageError, WeightsError
from ddtree.graph.explain import amount
from ddtree.graph.model import Model
from ddtree.graph.step_graph import StepGraph
from ddtree.graph.tensor import DType
from ddtree.runtime.delivery import MEMORY, Piece, Sink, run
from ddtree.runtime.launches import Place
from ddtree.runtime.load import Folders, Progress, silent
from ddtree.runtime.packed import BLOCK, ByShape, Destination, Use, destinations, uses_of
from ddtree.runtime.stream import stream_weights
from ddtree.runtime.weights import Checkpoint, strict_json
from ddtree.runtime.weights.files import OpenFiles
from ddtree.runtime.weights.header import Entry, Header, read_header
from ddtree.runtime.weights.int4 import Int4

FORMAT = "ddtree-packed/1"
CHUNK = 64 << 20  # bytes of a checksum, and of a job
AGAIN = "pack the checkpoint again (ddtree-compile --pack)"


def file_of(folder: Path, rank: int, ranks: int) -> Path:
    """A rank's file."""
    return folder / f"rank-{rank:03}-of-{ranks:03}.safetensors"


def name_of(place: Place) -> str:
    """The tensor of a place."""
    return "/".join((place.name, place.op, place.part))


def layout_digests(uses: Mapping[str, Sequence[Use]]) -> dict[str, str]:
    """By layout and shape, a digest of what packing makes of the same random bits."""
    digests = {}
    distinct = {ByShape(use): use for of_weight in uses.values() for use in of_weight if use.packs}
    for use in distinct.values():
        digest = hashlib.sha256()
        for part, packed in use.pack(_sample(use)).items():
            digest.update(part.encode() + packed.tobytes())
        digests[f"{use.key} {use.weight.dtype.value} {list(use.weight.shape)}"] = digest.hexdigest()[:16]
    return digests


def _sample(use: Use) -> np.ndarray | Int4:
    """Random bits of one unit, or of one block of rows."""
    w, rng = use.weight, np.random.default_rng(0)
    shape = (1, *w.shape[1:]) if w.count else (BLOCK, *w.shape[1:]) if use.form().block else w.shape
    if w.dtype is not DType.INT4:
        return (
            rng.integers(0, 256, int(np.prod(shape)) * w.dtype.bits // 8, np.uint8).view(w.dtype.numpy).reshape(shape)
        )
    codes = rng.integers(0, 1 << 32, (*shape[:-1], shape[-1] // 8), np.uint32)
    scales = rng.integers(0, 1 << 16, (*shape[:-1], shape[-1] // w.group), np.uint16)
    return Int4(codes, scales.view(DType.BF16.numpy), w.group)


class PackedFile:
    """A Sink that writes a rank's file; it has its name only once it is complete."""

    rearranges = False

    def __init__(self, path: Path, layouts: Mapping[str, str]) -> None:
        self.path, self.layouts = path, dict(layouts)
        self.part = path.with_suffix(".part")
        self._file = self.part.open("w+b")
        self._spans: dict[str, tuple[int, int]] = {}  # begin and end of each tensor
        self._alias: dict[Place, str] = {}
        self._end = self._origin = 0

    def allocate(self, places: Sequence[Place], nbytes: int) -> None:
        """See runtime.delivery.Sink. Tensors follow one another."""
        name = name_of(places[0])
        self._spans[name] = self._end, self._end + nbytes
        self._end += nbytes
        self._alias.update(dict.fromkeys(places, name))

    def write(self, place: Place, offset: int, data: np.ndarray) -> None:
        """See runtime.delivery.Sink."""
        self._origin = self._origin or len(self._header(0 for _ in self._chunks()))
        _write_all(self._file.fileno(), data, self._origin + self._spans[self._alias[place]][0] + offset)

    def rearrange(self, place: Place, offset: int, raw: np.ndarray, order: object) -> None:
        """See runtime.delivery.Sink; never called."""
        raise AssertionError("a file takes packed bytes")

    def finish(self) -> None:
        """Checksums, header, name."""
        sums = []
        for begin, end in self._chunks():
            self._file.seek(self._origin + begin)
            sums.append(zlib.crc32(self._file.read(end - begin)))
        self._file.seek(0)
        self._file.write(self._header(sums))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.part.replace(self.path)

    def discard(self) -> None:
        """Leave nothing of a file that is not complete."""
        self._file.close()
        self.part.unlink(missing_ok=True)

    def _chunks(self) -> Iterator[tuple[int, int]]:
        for begin, end in self._spans.values():
            yield from chunks(begin, end)

    def _header(self, sums: Iterable[int]) -> bytes:
        aliases = {name_of(place): name for place, name in self._alias.items() if name_of(place) != name}
        metadata = {
            "format": FORMAT, "layouts": json.dumps(self.layouts), "aliases": json.dumps(aliases), "sums": " ".join(f"{s:08x}" for s in sums)
        }  # fmt: skip
        table = {
            name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
            for name, (begin, end) in self._spans.items()
        }
        raw = json.dumps({"__metadata__": metadata, **table}).encode()
        raw += b" " * (-len(raw) % 8)
        return len(raw).to_bytes(8, "little") + raw


def _write_all(descriptor: int, data: np.ndarray, offset: int) -> None:
    view = data.data
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def chunks(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a tensor that have a checksum each."""
    yield from ((start, min(start + CHUNK, end)) for start in range(begin, end, CHUNK))


def pack_checkpoint(
    model: Model, where: Folders, graphs: Sequence[StepGraph], folder: Path, progress: Progress = silent
) -> list[Path]:
    """Write every rank's file, and beside them config.json and the tokenizer's file. Raises WeightsError, or UsageError
    when the disk is too small."""
    uses = uses_of(graphs)
    need = model.ranks * sum(d.nbytes for d in destinations(uses))
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise UsageError(f"{folder}: {model.ranks} packed ranks take {amount(need)}, the disk has {amount(free)} left")
    layouts = layout_digests(uses)
    files = {rank: PackedFile(file_of(folder, rank, model.ranks), layouts) for rank in range(model.ranks)}
    try:
        stream_weights(model, where, graphs, files, progress)
        for file in files.values():
            file.finish()
    except BaseException:
        for file in files.values():
            file.discard()
        raise
    for name in ("config.json", model.target.spec.text.tokenizer.ranks):
        if (where.target / name).is_file():
            shutil.copyfile(where.target / name, folder / name)
    return [file.path for file in files.values()]


@dataclass(frozen=True)
class Chunk:
    """A job: some bytes of a tensor, with their checksum."""

    ranks: tuple[int, ...]
    place: Place
    entry: Entry
    rows: slice
    crc: int

    @property
    def nbytes(self) -> int:
        """Bytes read."""
        return int(self.rows.stop - self.rows.start)

    memory = nbytes


def read_chunk(chunk: Chunk, files: OpenFiles) -> list[Piece]:
    """Read and check. Raises WeightsError."""
    data = files.read(chunk.entry, chunk.rows)
    found = zlib.crc32(data.data)
    if found != chunk.crc:
        raise WeightsError(
            f"{chunk.entry.path}: tensor {chunk.entry.name!r}: expected the checksum {chunk.crc:08x} of bytes "
            f"{chunk.rows.start}..{chunk.rows.stop}, found {found:08x}: the file is damaged; {AGAIN}"
        )
    return [Piece(chunk.ranks, chunk.place, chunk.rows.start, data)]


def is_packed(folder: Path) -> bool:
    """Whether a folder holds packed files."""
    return next(folder.glob("rank-*-of-*.safetensors"), None) is not None


def load_weights(
    model: Model, where: Folders, graphs: Sequence[StepGraph], sinks: Mapping[int, Sink], progress: Progress = silent, *,
    workers: int | None = None, memory: int = MEMORY,
) -> None:  # fmt: skip
    """Load the weights of `graphs`, the steps of any one rank, for every rank that has a sink: from packed files if the
    target's folder holds them, else from the checkpoints. Raises WeightsError."""
    if not is_packed(where.target):
        stream_weights(model, where, graphs, sinks, progress, workers=workers, memory=memory)
        return
    uses = uses_of(graphs)
    wanted, layouts = destinations(uses), layout_digests(uses)
    headers: dict[Path, Header] = {}
    jobs: list[Chunk] = []
    for rank in sorted(sinks):
        path = file_of(where.target, rank, model.ranks)
        headers[path] = read_header(path)
        jobs += _jobs(headers[path], rank, wanted, layouts)
    for destination in wanted:
        for sink in sinks.values():
            sink.allocate(destination.places, destination.nbytes)
    checkpoint = Checkpoint(where.target, "", (), headers, {})
    with OpenFiles(checkpoint, (job.entry for job in jobs)) as files:
        work = partial(read_chunk, files=files)
        run(jobs, work, sinks, progress, what="packed weights", workers=workers, memory=memory)


def _jobs(header: Header, rank: int, wanted: Sequence[Destination], layouts: Mapping[str, str]) -> list[Chunk]:
    """The chunks of what is wanted, in the order of the file."""
    metadata = _metadata(header.path)
    try:
        known = json.loads(metadata["layouts"])
        other = next((key for key, digest in layouts.items() if known.get(key) != digest), None)
        if other is not None:
            raise WeightsError(f"{header.path}: packed for other kernels than those that read {other}; {AGAIN}")
        sums, aliases = [int(s, 16) for s in metadata["sums"].split()], json.loads(metadata["aliases"])
        spans = [(name, slice(*span)) for name, entry in header.entries.items() for span in chunks(0, entry.nbytes)]
        crc: dict[str, list[tuple[slice, int]]] = {}
        for (name, rows), value in zip(spans, sums, strict=True):
            crc.setdefault(name, []).append((rows, value))
    except (KeyError, ValueError, AttributeError):
        raise WeightsError(f"{header.path}: its metadata is damaged; {AGAIN}") from None
    jobs = []
    for destination in wanted:
        names = [aliases.get(name_of(place), name_of(place)) for place in destination.places]
        found = next((header.entries[name] for name in names if name in header.entries), None)
        if found is None or found.nbytes != destination.nbytes:
            state = f"{found.nbytes} bytes" if found else "none"
            raise WeightsError(
                f"{header.path}: expected {destination.nbytes} bytes of {names[0]!r}, found {state}; {AGAIN}"
            )
        jobs += [Chunk((rank,), destination.places[0], found, rows, value) for rows, value in crc[found.name]]
    return sorted(jobs, key=lambda job: (job.entry.start, job.rows.start))


def _metadata(path: Path) -> dict[str, str]:
    """The metadata of a packed file whose header is valid."""
    with path.open("rb") as file:
        raw = file.read(int.from_bytes(file.read(8), "little"))
    metadata = strict_json.parse(raw, path).get("__metadata__")
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise WeightsError(f"{path}: expected a packed file of format {FORMAT}, found another; {AGAIN}")
    return metadata
