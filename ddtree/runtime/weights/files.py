"""Reading tensors of a checkpoint into memory of our own, from any number of threads.

Not through a mapping: a mapped file that is truncated, or a network drive that goes away, would kill the process with SIGBUS,
where a read returns an error that names the tensor. It also leaves the page cache alone to decide what stays in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from ddtree.errors import WeightsError
from ddtree.runtime.weights.checkpoint import Checkpoint, numpy_dtype
from ddtree.runtime.weights.header import Entry

AGAIN = "download it again and start again"


class OpenFiles:
    """The files that hold `entries`, open for as long as the `with` block lasts.

    Raises WeightsError when a file has gone or has changed since its header was validated.
    """

    def __init__(self, checkpoint: Checkpoint, entries: Iterable[Entry]) -> None:
        self.checkpoint = checkpoint
        self._descriptors: dict[Path, int] = {}
        try:
            for entry in entries:
                if entry.path not in self._descriptors:
                    self._descriptors[entry.path] = self._open(entry)
        except BaseException:
            self.close()
            raise

    def _open(self, entry: Entry) -> int:
        try:
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise WeightsError(
                f"{entry.path}: cannot open it to read tensor {entry.name!r}: {e.strerror}; the file was there when its "
                f"header was checked: {AGAIN}"
            ) from None
        with suppress(OSError, AttributeError):  # advice; not every system and file system takes it
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        header, status = self.checkpoint.headers[entry.path], os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (header.size, header.changed):
            os.close(descriptor)
            raise WeightsError(
                f"{entry.path}: the file changed after its header was checked ({header.size} bytes, now {status.st_size}), "
                f"before tensor {entry.name!r} was read; let the download end and start again"
            )
        return descriptor

    def read(self, entry: Entry, rows: slice | None = None) -> np.ndarray:
        """A tensor, or `rows` of its first axis, in its file's dtype. Raises WeightsError for a read that falls short."""
        dtype = numpy_dtype(entry)
        first, shape = 0, entry.shape
        if rows is not None:
            each = entry.nbytes // entry.shape[0]
            first, shape = rows.start * each, (rows.stop - rows.start, *entry.shape[1:])
            nbytes = each * shape[0]
        else:
            nbytes = entry.nbytes
        data = np.empty(nbytes, np.uint8)
        done = 0
        while done < nbytes:
            try:
                got = os.preadv(self._descriptors[entry.path], [data[done:].data], entry.start + first + done)
            except OSError as e:
                raise WeightsError(
                    f"{entry.path}: tensor {entry.name!r}: cannot read it: {e.strerror}; {AGAIN}"
                ) from None
            if not got:
                raise WeightsError(
                    f"{entry.path}: tensor {entry.name!r}: expected {nbytes} bytes at offset {entry.start + first}, found "
                    f"{done}: the file was truncated while it was being loaded; {AGAIN}"
                )
            done += got
        return data.view(dtype).reshape(shape)

    def close(self) -> None:
        """Close every file."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
