"""JSON from files that a user downloaded: bounded in size, without duplicate keys, and never a surprise exception."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ddtree.errors import WeightsError

MAX_BYTES = 100_000_000  # the cap of the safetensors format for a header; no index or config comes near it

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxother = 3, 16, 8, 200, 200


def shown(value: object) -> str:
    """A value from a file as one short line for a message, however long or deep it is."""
    return _SHORT.repr(value)


class _RefusedError(ValueError):
    """Well-formed JSON that this reader does not accept."""


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        repeated = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise _RefusedError(f"key {shown(repeated)} appears twice")
    return table


def _constant(text: str) -> object:
    raise _RefusedError(f"{text} is not a JSON number")


def parse(raw: bytes, file: str | Path) -> dict[str, object]:
    """The object that `raw` (UTF-8) holds; `file` names its origin in the WeightsError of anything else."""
    try:
        # A str, because json.loads would guess UTF-16 or UTF-32 from bytes.
        table = json.loads(raw.decode(), object_pairs_hook=_object, parse_constant=_constant)
    except (
        ValueError,
        RecursionError,
    ) as error:  # decoding, syntax, over-long integers and _RefusedError are ValueErrors
        raise WeightsError(f"{file}: expected JSON, found a fault: {error}; download the file again") from error
    if not isinstance(table, dict):
        raise WeightsError(f"{file}: expected a JSON object, found {type(table).__name__}; download the file again")
    return table


def read(path: Path) -> dict[str, object]:
    """The JSON object in the file `path`; WeightsError when it cannot be read, is too large or is not an object."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise WeightsError(f"{path}: expected at most {MAX_BYTES:,} bytes of JSON, found {size:,}")
        return parse(path.read_bytes(), path)
    except OSError as error:
        raise WeightsError(f"{path}: cannot read it: {error.strerror}") from error
