"""The memory of a group of ranks, as kernels see it (include/ddtree/ranks.cuh): sizes, and `struct Group` as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from ddtree.graph.op import Op, OpError
from ddtree.graph.ops import AllGather, AllReduce, AllReduceAddRmsNorm
from ddtree.templates.tiles.rowwise import ceil_div

MOST_RANKS = 8
BUFFERS = 3
WORD = 16  # bytes
ONE_SHOT = (
    64 << 10
)  # bytes of the longest message that goes to every rank as a whole, until a measurement says otherwise
EMPTY = 0xFF  # every byte of a mailbox without a message
STRUCT_BYTES = 192
FAILED, MISSING = 32, 52  # offsets of `failed` and `missing` in the struct


def require_ranks(ranks: int) -> None:
    """Raise OpError for a group that `struct Group` has no room for."""
    if not 2 <= ranks <= MOST_RANKS:
        raise OpError(f"a group has 2..{MOST_RANKS} ranks, found {ranks}")


def buffer_words(ops: Iterable[Op], one_shot: int) -> int:
    """Words of one buffer of a mailbox, enough for the messages of all collectives among `ops` at full row capacity.

    one_shot  words of the longest message that an all-reduce ever sends to every rank as a whole
    """
    most = 1
    for op in ops:
        if isinstance(op, AllReduce | AllReduceAddRmsNorm):
            rows, vectors = op.x.shape[0], op.x.width // 8
            two = op.ranks * rows * ceil_div(vectors, op.ranks) + rows * vectors
            most = max(most, op.ranks * min(one_shot, rows * vectors), two)
        elif isinstance(op, AllGather):
            most = max(most, op.ranks * op.x.nbytes // WORD)
    return most


def pack_group(
    rank: int, mailboxes: Sequence[int], failures: Sequence[int], *, buffer: int, one_shot: int, limit: float
) -> bytes:
    """`struct Group` of one rank before its first message.

    mailboxes  every rank's mailbox          failures  every rank's `failed`, both as this rank addresses them
    buffer     words of one buffer           limit     seconds that a wait may take
    """
    ranks, none = len(mailboxes), [0] * (MOST_RANKS - len(mailboxes))
    head = (rank, ranks, buffer, one_shot, round(limit * 1e9), *[0] * 8)
    return struct.pack(f"4IQ8I{2 * MOST_RANKS}Q8x", *head, *mailboxes, *none, *failures, *none)


def silent_ranks(missing: Sequence[int]) -> list[int]:
    """The ranks that others waited for in vain and that waited for nobody: where a failure began.

    missing  every rank's field `missing`. Empty when all who were waited for waited themselves
    """
    return [r for r, waited in enumerate(missing) if not waited and any(m >> r & 1 for m in missing)]
