"""The header of one safetensors file, checked with Python integers before a byte of it is mapped.

Format (https://github.com/huggingface/safetensors): 8 bytes little-endian header length, that many bytes of JSON
`{name: {dtype, shape, data_offsets: [begin, end]}, "__metadata__": {str: str}}`, then the data that the offsets count.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from ddtree.errors import WeightsError
from ddtree.runtime.weights import strict_json
from ddtree.runtime.weights.strict_json import shown

MAX_ENTRIES = 500_000  # more than twice the tensors of the largest checkpoint we know
MAX_RANK = 8  # this and MAX_SIZE keep the product of a hostile shape small
MAX_SIZE = 1 << 63  # of an axis or an offset
BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_KEYS = {"dtype", "shape", "data_offsets"}
_LFS = b"version "  # first 8 bytes of a Git LFS pointer file


class Entry(NamedTuple):
    """One tensor of a file: `dtype` as safetensors spells it, `start` in bytes from the beginning of the file."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """A validated header: its entries cover the data of the file exactly, in order and without overlap.

    size     bytes of the whole file when it was validated
    entries  by tensor name, in file order
    changed  when the file was last written, in nanoseconds: data of another moment does not belong to this header
    """

    path: Path
    size: int
    entries: dict[str, Entry]
    changed: int


def read_header(path: Path) -> Header:
    """Read and validate the header of `path`. WeightsError names the file, the tensor and the fault."""
    try:
        if not path.is_file():
            raise WeightsError(f"{path}: expected a safetensors file, found none; download it or check --weights")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            first = file.read(8)
            length = _header_length(path, first, size)
            raw = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path}: cannot read it: {error.strerror}") from error
    if len(raw) != length:
        raise WeightsError(f"{path}: expected a header of {length:,} bytes, found {len(raw):,}; the file is changing")
    return Header(path, size, parse_header(raw, path, size - 8 - length), status.st_mtime_ns)


def parse_header(raw: bytes, path: Path, data_bytes: int) -> dict[str, Entry]:
    """Entries of the header JSON `raw`, in file order, for a file that holds `data_bytes` bytes after its header."""
    table = strict_json.parse(raw, path)
    _check_metadata(path, table.pop("__metadata__", None))
    if len(table) > MAX_ENTRIES:
        raise WeightsError(f"{path}: expected at most {MAX_ENTRIES:,} tensors, found {len(table):,}")
    origin = 8 + len(raw)
    entries = [_entry(path, origin, name, info) for name, info in table.items()]
    entries.sort(key=lambda entry: (entry.start, entry.nbytes))
    _check_cover(path, origin, data_bytes, entries)
    return {entry.name: entry for entry in entries}


def _header_length(path: Path, first: bytes, size: int) -> int:
    """Header length that the first 8 bytes state, if the file can hold it."""
    if len(first) < 8:
        raise WeightsError(f"{path}: expected a safetensors file, found {size} bytes; download the file again")
    if first == _LFS:
        raise WeightsError(f"{path}: expected tensors, found a Git LFS pointer; run `git lfs pull`")
    length = int.from_bytes(first, "little")
    if length > strict_json.MAX_BYTES:
        raise WeightsError(
            f"{path}: expected a header of at most {strict_json.MAX_BYTES:,} bytes, found a length of {length:,}; "
            "this is not a safetensors file"
        )
    if 8 + length > size:
        raise WeightsError(
            f"{path}: truncated: expected a header of {length:,} bytes, found {size - 8:,}; download the file again"
        )
    return length


def _check_metadata(path: Path, metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(type(value) is str for value in metadata.values()):
        raise WeightsError(f"{path}: expected __metadata__ of strings, found something else; download the file again")


def _entry(path: Path, origin: int, name: str, info: object) -> Entry:
    """Validate one tensor's description on its own."""
    if type(info) is not dict or info.keys() != _KEYS:
        raise _fault(path, name, f"an object with {', '.join(sorted(_KEYS))}", shown(info))
    dtype, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if type(dtype) is not str or dtype not in BITS:
        raise _fault(path, name, f"a dtype of {', '.join(BITS)}", shown(dtype))
    if type(shape) is not list or len(shape) > MAX_RANK or not all(type(n) is int and 0 <= n < MAX_SIZE for n in shape):
        raise _fault(path, name, f"a shape of at most {MAX_RANK} sizes", shown(shape))
    if type(offsets) is not list or len(offsets) != 2 or not all(type(n) is int for n in offsets):
        raise _fault(path, name, "data_offsets [begin, end]", shown(offsets))
    begin, end = offsets
    if not 0 <= begin <= end < MAX_SIZE:
        raise _fault(path, name, "data_offsets with 0 <= begin <= end", shown(offsets))
    if prod(shape) * BITS[dtype] != (end - begin) * 8:
        need = f"{prod(shape) * BITS[dtype]} bits for {dtype} {shape}"
        raise _fault(path, name, need, f"{(end - begin) * 8} between its offsets")
    return Entry(name, path, dtype, tuple(shape), origin + begin, end - begin)


def _check_cover(path: Path, origin: int, data_bytes: int, entries: list[Entry]) -> None:
    """The entries, sorted by place, must fill the data exactly."""
    cursor = origin
    for entry in entries:
        if entry.start != cursor:
            kind = "overlaps the tensor before it" if entry.start < cursor else "leaves a hole before it"
            raise _fault(path, entry.name, f"data at offset {cursor - origin}", f"{entry.start - origin}: it {kind}")
        cursor = entry.start + entry.nbytes
    need = cursor - origin
    if need > data_bytes:
        late = next(entry for entry in entries if entry.start + entry.nbytes > origin + data_bytes)
        raise _fault(path, late.name, f"{need} bytes of data", f"{data_bytes}: the file is truncated")
    if need < data_bytes:
        raise WeightsError(
            f"{path}: expected {need} bytes of data, found {data_bytes}: bytes that belong to no tensor; "
            "download the file again"
        )


def _fault(path: Path, name: str, expected: str, found: str) -> WeightsError:
    return WeightsError(f"{path}: tensor {shown(name)}: expected {expected}, found {found}; download the file again")
