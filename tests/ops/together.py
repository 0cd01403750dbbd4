"""A collective on the emulator: all ranks in one launch, `blockIdx.y` being the rank, each on memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ddtree.graph.op import Op
from ddtree.templates.group import BUFFERS, EMPTY, FAILED, MISSING, STRUCT_BYTES, WORD, buffer_words, pack_group
from ddtree.templates.kernel import Kernel, Tile
from tests.emulator import SCHEDULES, Module, Schedule, guarded
from tests.ops.memory import OpMemory

ALWAYS, NEVER = 1 << 30, 0  # longest message of one shot, in words
BLOCKS = 4  # of each rank
ONE_SHOT_FIELD, TURN = 12, 24  # offsets of `one_shot` and `turn` in the struct

# The kernel of one rank as a function; its launches one after another, as in a stream. `buffers` only says what memory there is.
_TOGETHER = """
KERNEL({threads}) {name}_ranks(void** cells, int messages, int arguments{buffers}) {{
    for (int m = 0; m < messages; ++m) {{
        if (m > 0) __syncthreads();
        emu::Entry<{name}>::call(cells + (m * gridDim.y + blockIdx.y) * arguments);
    }}
}}
"""


class Ranks:
    """The mailboxes and `struct Group`s of `ranks` ranks, for messages of the given ops."""

    def __init__(self, ops: Sequence[Op], ranks: int, *, one_shot: int = ALWAYS, limit: float = 1.0) -> None:
        self.ranks = ranks
        self.words = max(buffer_words(ops, ALWAYS), buffer_words(ops, NEVER))
        self.mailboxes = [guarded(np.full((BUFFERS, self.words * WORD), EMPTY, np.uint8)) for _ in range(ranks)]
        self.structs = [guarded(np.zeros(STRUCT_BYTES, np.uint8)) for _ in range(ranks)]
        boxes = [m.ctypes.data for m in self.mailboxes]
        failures = [s.ctypes.data + FAILED for s in self.structs]
        for rank, made in enumerate(self.structs):
            packed = pack_group(rank, boxes, failures, buffer=self.words, one_shot=one_shot, limit=limit)
            made[:] = np.frombuffer(packed, np.uint8)

    def word(self, rank: int, offset: int) -> int:
        """A 32-bit field of a rank's struct."""
        return int(self.structs[rank][offset : offset + 4].view(np.uint32)[0])

    def send_whole(self, words: int) -> None:
        """Messages of up to `words` words go in one shot."""
        for made in self.structs:
            made[ONE_SHOT_FIELD : ONE_SHOT_FIELD + 4].view(np.uint32)[0] = words

    def launch(
        self,
        tile: Tile,
        source: str,
        messages: Sequence[Sequence[Sequence[np.ndarray | int]]],
        load: Callable[[str, str], Module],
        *,
        schedule: Schedule = SCHEDULES[0],
        delayed: bool = True,
    ) -> None:
        """All ranks' launches of a kernel for several messages, one after another on each rank; `messages` holds the arguments,
        arrays or addresses, of each rank for each message. `load` makes a module of a source and a kernel's name."""
        assert len(messages) == 1 or tile.grid[0] == 1, "launches of several blocks do not wait for one another here"
        arguments = [a for ranks in messages for one in ranks for a in one]
        cells = guarded(np.array([a if isinstance(a, int) else a.ctypes.data for a in arguments], np.uint64))
        table = guarded(cells.ctypes.data + 8 * np.arange(len(cells), dtype=np.uint64))
        known = {a.ctypes.data: a for a in (*arguments, *self.mailboxes) if not isinstance(a, int)}
        extra = "".join(f", void* buffer{i}" for i in range(len(known)))
        wrapper = _TOGETHER.format(threads=tile.block, name=tile.name, buffers=extra)
        load(source + wrapper, f"{tile.name}_ranks").launch(
            f"{tile.name}_ranks", (tile.grid[0], len(messages[0])), tile.block,
            [table, len(messages), len(tile.args), *known.values()], tile.smem, schedule, cooperative=True, delayed_copies=delayed,
        )  # fmt: skip

    def arguments(self, tile: Tile, ranks: Sequence[OpMemory]) -> list[list[np.ndarray]]:
        """The arguments of each rank for one message."""
        return [memory.arguments(tile, self.structs[rank]) for rank, memory in enumerate(ranks)]

    def check(self) -> None:
        """Nobody gave up, all ranks are at the same message, and of each mailbox only the last message's buffer is in use."""
        turns = {self.word(rank, TURN) for rank in range(self.ranks)}
        assert len(turns) == 1, f"ranks at different messages: {turns}"
        (turn,) = turns
        for rank, mailbox in enumerate(self.mailboxes):
            assert not self.word(rank, FAILED) and not self.word(rank, MISSING), f"rank {rank} gave up"
            for other in (turn, (turn + 1) % BUFFERS):
                assert (mailbox[other] == EMPTY).all(), f"rank {rank}: buffer {other} is not empty"


def memories(op: Any, inputs: dict[str, Any], rows: Any, kernel: Kernel) -> list[OpMemory]:
    """Every rank's memory: `x` is a list with each rank's part, other inputs are the same on all ranks."""
    return [OpMemory(op, inputs | {"x": part}, rows, (kernel.tile,)) for part in inputs["x"]]


def emulate_ranks(
    op: Any, kernel: Kernel, inputs: dict[str, Any], rows: Any, load: Callable[[str, str], Module], **options: Any
) -> dict[str, Any]:
    """What every rank makes of the message, in one shot and, by the same group, in two; all must agree bit for bit."""
    group, ranks = Ranks([op], op.ranks), memories(op, inputs, rows, kernel)
    made: list[dict[str, Any]] = []
    for one_shot in (ALWAYS, NEVER):
        group.send_whole(one_shot)
        for memory in ranks:
            memory.reset()
        group.launch(kernel.tile, kernel.source, [group.arguments(kernel.tile, ranks)], load, **options)
        group.check()
        made += [memory.results() for memory in ranks]
    for other in made[1:]:
        for field, array in other.items():
            assert array.tobytes() == made[0][field].tobytes(), f"{field}: ranks, or one shot and two, differ"
    return made[0]
