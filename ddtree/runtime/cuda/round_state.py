"""What rounds read and leave: `struct Round` in device memory, the ring of records and `struct Control` in pinned memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from ddtree.errors import DeviceError
from ddtree.graph.build import Limits
from ddtree.runtime.cuda.driver import Device
from ddtree.templates.round import CONTROL, record_dtype, ring_rounds, state_dtype

WAIT_SECONDS = 60.0  # a round of any model takes far less; a longer silence is a hang
ALIVE_SECONDS = 0.02  # between looks at the stream while nothing comes
ARRAYS = ("slots", "committed", "anchor", "remaining", "limit", "budgets")


class RoundState:
    """The state of a loop of rounds, and how the host follows it.

    Rounds are counted from 0. Round t's record is entry t % ring of `records` until the host has taken it.

    arrays    device addresses of the state's arrays, by name
    launched  launches of graphs so far; each ends when the GPU says so
    taken     records that the host has read
    columns   the fields of the records, [ring, ...]; those of a slot [ring, sequences, ...]
    """

    def __init__(self, device: Device, limits: Limits) -> None:
        self.device, self.limits = device, limits
        self.ring, dtype = ring_rounds(limits), state_dtype()
        size, each = -(-dtype.itemsize // 256) * 256, -(-4 * limits.sequences // 256) * 256
        self._image = np.zeros(size + each * len(ARRAYS), np.uint8)  # of the device's block
        self._struct = self._image[: dtype.itemsize].view(dtype)
        self.address = device.alloc(self._image.nbytes, "round state")
        self.arrays: dict[str, int] = {}
        self._values: dict[str, np.ndarray] = {}
        for i, name in enumerate(ARRAYS):
            at = size + i * each
            self._values[name] = self._image[at : at + 4 * limits.sequences].view(np.int32)
            self.arrays[name] = self._struct[name][0] = self.address + at
        self.count = device.alloc(4 * limits.sequences, "round state count")
        record = record_dtype(limits)
        memory, self.records_address = device.pinned(self.ring * record.itemsize)
        self.records = memory.view(record)
        each_slot = {name: self.records["slot"][name] for name in record["slot"].base.names or ()}
        self.columns = {name: self.records[name] for name in record.names or () if name != "slot"} | each_slot
        words, self.control = device.pinned(CONTROL.itemsize)
        self._words = words.view(CONTROL)[0]
        self.launched = self.taken = 0
        self._fault: DeviceError | None = None

    def write(self, slots: Sequence[int], budget: int, values: Mapping[str, np.ndarray]) -> None:
        """Set the state while nothing runs: the active slots in row order, the size of a tree, and by slot the committed
        positions, anchor, remaining tokens and limit."""
        struct = self._struct[0]
        struct["active"], struct["budget"] = len(slots), budget
        struct["turn"], struct["launches"] = self.head & 0xFFFFFFFF, self.launched & 0xFFFFFFFF
        self._values["slots"][: len(slots)] = slots
        for name, array in values.items():
            self._values[name][:] = array
        self.device.write(self.address, self._image)

    @property
    def head(self) -> int:
        """Rounds recorded."""
        return self.taken + (int(self._words["head"]) - self.taken & 0xFFFFFFFF)

    @property
    def unread(self) -> int:
        """Records that the host has not taken."""
        return self.head - self.taken

    @property
    def running(self) -> bool:
        """Whether a launch has not ended yet."""
        return int(self._words["ended"]) != self.launched & 0xFFFFFFFF

    def take(self) -> None:
        """The oldest record has been read; its entry may be overwritten."""
        self.taken += 1
        self._words["tail"] = self.taken & 0xFFFFFFFF

    def begin(self) -> None:
        """A launch follows."""
        self._words["pause"] = 0
        self.launched += 1

    def wait_record(self, nap: float) -> None:
        """Return when a record is there, or none can come because nothing runs. `nap` seconds are slept between looks; 0
        looks without a rest."""
        watch = None
        while self.running and not self.unread:
            watch = watch or _Watch(self)
            watch.nap(nap)

    def pause(self, nap: float) -> None:
        """Ask the loop to end after the round that runs, and return when it has."""
        self._words["pause"] = 1
        watch = None
        while self.running:
            watch = watch or _Watch(self)
            watch.nap(nap)

    def look(self, seconds: float) -> None:
        """Raise DeviceError when the GPU faulted, or when nothing came for so many seconds that it hangs."""
        if self._fault:
            raise self._fault
        try:
            if self.device.idle("running rounds (--check-kernels names the kernel)") and self.running:
                self.launched -= 1  # the launch was interrupted before it began
            if seconds > WAIT_SECONDS:
                raise DeviceError(
                    f"no round ended within {WAIT_SECONDS:.0f} s; the GPU hangs or another process holds it"
                )
        except DeviceError as e:
            self._fault = e
            raise


class _Watch:
    """Waiting that notices when what it waits for cannot come."""

    def __init__(self, state: RoundState) -> None:
        self.state, self.head = state, state.head
        self.moved = self.looked = time.monotonic()
        state.look(0.0)

    def nap(self, seconds: float) -> None:
        """Sleep, and look at the GPU now and then."""
        if seconds:
            time.sleep(seconds)
        now = time.monotonic()
        if now - self.looked > ALIVE_SECONDS:
            if self.state.head != self.head:
                self.head, self.moved = self.state.head, now
            self.state.look(now - self.moved)
            self.looked = now
