"""The rank file of a tokenizer: its tokens' bytes in the order in which byte-pair encoding merges them."""

from __future__ import annotations

import binascii
from pathlib import Path

from ddtree.errors import WeightsError


def load_ranks(path: Path, count: int) -> dict[bytes, int]:
    """Read a tiktoken rank file (lines `base64(token bytes) SPACE rank`): token bytes -> rank.

    Nothing is downloaded or cached: tiktoken's own loader keeps a copy in the temporary folder and would not notice
    that the file has changed.

    Raises WeightsError, naming the line, unless the file has exactly the ranks 0..count-1, no token twice and all 256
    single bytes (any text can be encoded then).
    """
    ranks: dict[bytes, int] = {}
    owner: list[bytes | None] = [None] * count
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        token, rank = _parse(line, f"{path}:{number}")
        if rank >= count:
            raise WeightsError(
                f"{path}:{number}: rank {rank} is outside 0..{count - 1}, the tokens that the YAML names"
            )
        if token in ranks or owner[rank] is not None:
            what = f"rank {rank}" if token not in ranks else f"token {token!r}"
            raise WeightsError(f"{path}:{number}: {what} stands in the file twice; copy the rank file again")
        ranks[token] = rank
        owner[rank] = token
    if len(ranks) != count:
        raise WeightsError(
            f"{path}: expected {count} tokens, found {len(ranks)}; rank {owner.index(None)} is the first missing one"
        )
    if absent := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise WeightsError(f"{path}: no token for the single byte 0x{absent[0]:02x}; this is no byte-level vocabulary")
    return ranks


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        raise WeightsError(f"{path}: the tokenizer's rank file is missing; it belongs to the checkpoint") from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot read the tokenizer's rank file: {error.strerror}") from None


def _parse(line: bytes, place: str) -> tuple[bytes, int]:
    fields = line.split()
    if len(fields) != 2 or not fields[1].isdigit() or len(fields[1]) > 9:
        raise WeightsError(f"{place}: expected `base64 rank`, found {line[:40]!r}")
    try:
        token = binascii.a2b_base64(fields[0], strict_mode=True)
    except binascii.Error:
        raise WeightsError(f"{place}: {fields[0][:40]!r} is not base64; copy the rank file again") from None
    return token, int(fields[1])
