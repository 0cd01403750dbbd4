"""A folder of safetensors files as one table of tensors: opened by its headers alone, mapped only when read."""

from __future__ import annotations

import gc
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path, PurePosixPath

import ml_dtypes
import numpy as np

from ddtree.errors import SpecError, WeightsError
from ddtree.graph.tensor import Weight
from ddtree.runtime.weights import strict_json
from ddtree.runtime.weights.header import MAX_ENTRIES, Entry, Header, read_header
from ddtree.runtime.weights.layout import Read, sources, stored
from ddtree.runtime.weights.nearest import hint

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_NUMPY = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    **{name: np.dtype(code) for name, code in {"F16": "<f2", "F32": "<f4", "F64": "<f8"}.items()},
    **{f"{kind}{8 * n}": np.dtype(f"<{kind.lower()}{n}") for kind in "IU" for n in (1, 2, 4, 8)},
}


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of a checkpoint by their name in the files.

    folder   where the files are
    prefix   what stands in the files before every `Weight.source`, for example `language_model.`
    ignore   compiled rules for tensors that nobody needs to name; they match the whole name in the files
    headers  validated headers by file
    entries  every tensor of every file that was opened
    """

    folder: Path
    prefix: str
    ignore: tuple[re.Pattern[str], ...]
    headers: dict[Path, Header]
    entries: dict[str, Entry]
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, folder: str | Path, *, prefix: str = "", ignore: Sequence[str] = ()) -> Checkpoint:
        """Validate the index (or the single file) and the header of every shard; reads no tensor data.

        An `ignore` rule is a glob, or a regular expression after `re:`, as in compressed-tensors configurations; either
        must match a whole name. A shard that holds ignored tensors alone may be absent. Raises WeightsError.
        """
        folder, rules = Path(folder), compile_rules(ignore)
        try:
            with _paused_collector():
                headers = _open_files(folder, rules)
        except OSError as error:  # a folder without permission, a file name that the system refuses
            raise WeightsError(f"{folder}: cannot read it: {error}") from error
        entries: dict[str, Entry] = {}
        for header in headers.values():
            entries.update(header.entries)
        return cls(folder, prefix, rules, headers, entries)

    def tensor(self, name: str) -> np.ndarray:
        """Read-only view of the tensor `prefix + name` in its file's shape and dtype (BF16 as ml_dtypes.bfloat16)."""
        full = self.prefix + name
        if full not in self.entries:
            raise WeightsError(f"{self.folder}: no tensor {full!r}{hint(full, self.entries)}")
        return self.view(self.entries[full])

    def view(self, entry: Entry) -> np.ndarray:
        """Read-only view of the bytes of `entry` in the mapped file."""
        dtype = numpy_dtype(entry)
        flat = np.frombuffer(self._map(entry.path), dtype, entry.nbytes // dtype.itemsize, entry.start)
        return flat.reshape(entry.shape)

    def match(self, weights: Iterable[Weight]) -> list[Read]:
        """Find every tensor of `weights` with the right dtype and shape, or raise WeightsError; reads no tensor data."""
        reads: list[Read] = []
        missing: list[tuple[Weight, str]] = []
        wrong: list[Read] = []
        for weight in weights:
            parts = stored(weight)
            for expert, source in enumerate(sources(weight)):
                base = self.prefix + source
                for part in parts:
                    entry = self.entries.get(base + part.suffix)
                    if entry is None:
                        missing.append((weight, base + part.suffix))
                        continue
                    read = Read(weight, part, expert, entry)
                    (reads if entry.dtype in part.dtypes and entry.shape == part.shape else wrong).append(read)
        if wrong:
            others = _others(len(wrong) - 1, "of another dtype or shape") + _others(len(missing), "missing")
            raise WeightsError(_wrong(wrong[0]) + others)
        if missing:
            weight, name = missing[0]
            unclaimed = self.entries.keys() - {read.entry.name for read in reads}
            raise WeightsError(
                f"{self.folder}: tensor {name!r} of weight {weight.name!r} is missing{hint(name, sorted(unclaimed))}; "
                f"correct the source or the prefix in the YAML, or complete the download{_others(len(missing) - 1, 'missing')}"
            )
        return reads

    def check(self, weights: Iterable[Weight]) -> list[Read]:
        """`match`, and the files hold nothing else but what an ignore rule names. Raises WeightsError."""
        reads = self.match(weights)
        named = {read.entry.name for read in reads}
        extra = [name for name in self.entries if name not in named and not _matches(self.ignore, name)]
        if extra:
            entry = self.entries[extra[0]]
            few = "".join(f", {name!r}" for name in extra[1:3])
            raise WeightsError(
                f"{entry.path}: tensor {entry.name!r} ({entry.dtype} {list(entry.shape)}) belongs to no weight of the YAML"
                f"{hint(entry.name, named)}; add a weight or an ignore rule for it"
                f"{_others(len(extra) - 1, 'unknown' + few)}"
            )
        return reads

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            try:
                with path.open("rb") as file:
                    view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise WeightsError(f"{path}: cannot map it: {error}") from error
            if len(view) != self.headers[path].size:
                raise WeightsError(
                    f"{path}: expected {self.headers[path].size} bytes, found {len(view)}; the file changed while loading"
                )
            self._maps[path] = view
        return self._maps[path]


def numpy_dtype(entry: Entry) -> np.dtype:
    """The NumPy dtype of a tensor's elements. Raises WeightsError for one that NumPy lacks."""
    if entry.dtype not in _NUMPY:
        raise WeightsError(f"{entry.path}: tensor {entry.name!r}: dtype {entry.dtype} cannot be loaded")
    return _NUMPY[entry.dtype]


def compile_rules(rules: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Globs and `re:` expressions as patterns for whole names; SpecError for an expression that does not compile."""
    patterns = []
    for rule in rules:
        try:
            patterns.append(re.compile(rule[3:] if rule.startswith("re:") else translate(rule)))
        except re.error as error:
            raise SpecError(f"ignore rule {rule!r} is not a regular expression: {error}") from error
    return tuple(patterns)


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Without cyclic collection: it walks the hundreds of thousands of new objects of large headers again and again, in
    vain, and would take 40% of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _matches(rules: tuple[re.Pattern[str], ...], name: str) -> bool:
    return any(rule.fullmatch(name) for rule in rules)


def _open_files(folder: Path, rules: tuple[re.Pattern[str], ...]) -> dict[Path, Header]:
    """Headers of the files that make up the checkpoint: those of the index where there is one, else the single file."""
    if not folder.is_dir():
        raise WeightsError(f"{folder}: expected a folder with {INDEX} or {SINGLE}, found none; check --weights")
    if (folder / INDEX).exists():
        return _open_shards(folder, rules)
    if (folder / SINGLE).exists():
        return {folder / SINGLE: read_header(folder / SINGLE)}
    raise WeightsError(f"{folder}: expected {INDEX} or {SINGLE}, found neither; check --weights")


def _open_shards(folder: Path, rules: tuple[re.Pattern[str], ...]) -> dict[Path, Header]:
    """Headers of the shards that the index names, each holding exactly the tensors that the index places there."""
    index = folder / INDEX
    shards: dict[str, set[str]] = {}
    for name, file in _weight_map(index).items():
        shards.setdefault(file, set()).add(name)
    for file in shards:
        _check_place(index, file)
    absent = [file for file in shards if not (folder / file).is_file()]
    needed = [file for file in absent if not all(_matches(rules, name) for name in shards[file])]
    if needed:
        raise WeightsError(
            f"{index}: shard {needed[0]!r} is missing; complete the download{_others(len(needed) - 1, 'missing', 'shard')}"
        )
    headers: dict[Path, Header] = {}
    for file in sorted(shards.keys() - set(absent)):
        header = headers[folder / file] = read_header(folder / file)
        _check_shard(index, header, shards[file])
    return headers


def _weight_map(index: Path) -> dict[str, str]:
    table = strict_json.read(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(type(file) is str for file in table.values()):
        raise WeightsError(
            f"{index}: expected weight_map of tensor names and file names, found none; download it again"
        )
    if len(table) > MAX_ENTRIES:
        raise WeightsError(f"{index}: expected at most {MAX_ENTRIES:,} tensors, found {len(table):,}")
    return table


def _check_place(index: Path, file: str) -> None:
    """A shard's path must stay in the folder. Links that the folder itself holds are followed: download caches use them."""
    path = PurePosixPath(file)
    plain = str(path) == file and path.name and file.isprintable() and not set(file) & set("\\:")
    if not plain or path.is_absolute() or ".." in path.parts:
        raise WeightsError(
            f"{index}: expected shard paths inside the folder, found {file!r}; do not trust this checkpoint"
        )


def _check_shard(index: Path, header: Header, listed: set[str]) -> None:
    if header.entries.keys() == listed:
        return
    lost, added = listed - header.entries.keys(), header.entries.keys() - listed
    where, names = ("the index but not in the shard", lost) if lost else ("the shard but not in the index", added)
    raise WeightsError(
        f"{header.path}: tensor {min(names)!r} is in {where}: index and shard are of different revisions; "
        f"download {index.name} and this shard again{_others(len(lost) + len(added) - 1, 'affected')}"
    )


def _wrong(read: Read) -> str:
    entry, part = read.entry, read.stored
    return (
        f"{entry.path}: tensor {entry.name!r}: expected {' or '.join(part.dtypes)} {list(part.shape)} "
        f"for weight {read.weight.name!r}, found {entry.dtype} {list(entry.shape)}; "
        "correct the weight's shape or dtype in the YAML, or use the checkpoint that it describes"
    )


def _others(count: int, what: str, noun: str = "tensor") -> str:
    return f" ({count} more {noun}{'s' if count > 1 else ''} {what})" if count > 0 else ""
