"""The compile cache: content hash -> cubin, safe for any number of processes and for a kill at any moment.

    <root>/kernels/<2 hex>/<key>/   kernel.cu  kernel.cubin  kernel.json    one published entry
    <root>/locks/<3 hex>            flock files; the system releases a dead process's lock
    <root>/staging/<key>-<random>/  entries being written or thrown away, owned by the holder of the key's lock

The contract is: `try_load` (None, never an exception, for a missing, stale or damaged entry) -> lock -> `try_load`
again, since another process may have been faster -> build -> publish by one rename. A cubin is code: every load checks
the SHA-256 of all three files, and a folder into which others can write is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.errors import CompileError

FORMAT = 1  # part of every key: raise it when the files or the meaning of the facts change
CUBIN, SOURCE, RECORD = "kernel.cubin", "kernel.cu", "kernel.json"

_POLL_SECONDS = 0.01
_TOUCH_SECONDS = 86_400.0  # how stale an entry's last-use time may get; saves a write per load


@dataclass(frozen=True)
class Entry:
    """A compiled kernel: machine code, the source it came from, and facts about it as JSON values."""

    cubin: bytes
    source: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Pruned:
    """What `prune` removed, and what is left, in entries and bytes."""

    removed: int
    removed_bytes: int
    kept: int
    kept_bytes: int


def default_root() -> Path:
    """$DDTREE_CACHE, else $XDG_CACHE_HOME/ddtree, else ~/.cache/ddtree."""
    if own := os.environ.get("DDTREE_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "ddtree"


def content_key(parts: dict[str, Any]) -> str:
    """64 hex digits over everything that decides the machine code; `parts` are JSON values."""
    return _sha256(json.dumps([FORMAT, parts], sort_keys=True).encode())


class CompileCache:
    """One cache folder. Create one per command; it may be used by many threads.

    root           folder, created with mode 0700; default_root() when omitted
    lock_timeout   seconds to wait for another process that compiles the same kernel

    Raises:
        CompileError: the folder can't be created, belongs to another user, or is writable by group or others.
    """

    def __init__(self, root: Path | None = None, *, lock_timeout: float = 600.0) -> None:
        self.root = (root or default_root()).absolute()
        self._lock_timeout = lock_timeout
        self._kernels, self._locks, self._staging = (self.root / name for name in ("kernels", "locks", "staging"))
        for folder in (self.root, self._kernels, self._locks, self._staging):
            _make_private(folder)

    def try_load(self, key: str) -> Entry | None:
        """The entry of a key, or None when it is missing, stale or damaged in any way. Never raises."""
        folder = self._folder(key)
        try:
            entry = _read_entry(folder, key)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        with contextlib.suppress(OSError):  # last use, for prune; another process may just have pruned the entry
            if time.time() - (folder / RECORD).stat().st_mtime > _TOUCH_SECONDS:
                os.utime(folder / RECORD)
        return entry

    def get(self, key: str, build: Callable[[], Entry]) -> tuple[Entry, bool]:
        """The entry of a key and True when it came from the cache; otherwise `build()` is called and published.

        Of all processes and threads that ask for a key at once, one builds and the others load its result.
        """
        if entry := self.try_load(key):
            return entry, True
        with self._lock(key, self._lock_timeout):
            if entry := self.try_load(key):
                return entry, True
            entry = build()
            with _explained(self.root):
                self._publish(key, entry)
            return entry, False

    def prune(self, *, max_bytes: int = 1 << 30, max_age_days: float = 180.0) -> Pruned:
        """Removes entries unused for `max_age_days`, then the longest unused ones until `max_bytes` are left.

        Entries that a process is building right now are left alone, remains of killed processes are removed.
        """
        removed = removed_bytes = kept = kept_bytes = 0
        oldest = time.time() - max_age_days * 86_400
        for used, size, key in sorted(self._entries(), reverse=True):
            if used >= oldest and kept_bytes + size <= max_bytes:
                kept, kept_bytes = kept + 1, kept_bytes + size
            elif self._remove(key):
                removed, removed_bytes = removed + 1, removed_bytes + size
        for key in {path.name.partition("-")[0] for path in self._staging.iterdir()}:
            with contextlib.suppress(_LockHeldError, OSError), self._lock(key, 0):
                self._sweep(key)
        return Pruned(removed, removed_bytes, kept, kept_bytes)

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """(time of last use, bytes, key) of each published entry."""
        for folder in self._kernels.glob("*/*"):
            with contextlib.suppress(OSError):
                sizes = [path.stat().st_size for path in folder.iterdir()]
                record = folder / RECORD
                used = (record if record.exists() else folder).stat().st_mtime
                yield used, sum(sizes), folder.name

    def _remove(self, key: str) -> bool:
        try:
            with self._lock(key, 0):
                self._folder(key).rename(self._new_staging(key))
                self._sweep(key)
        except (_LockHeldError, OSError):
            return False
        return True

    def _publish(self, key: str, entry: Entry) -> None:
        """Writes an entry aside, flushes it to the disk and renames it into place. The key's lock is held."""
        staging, final = self._new_staging(key), self._folder(key)
        try:
            staging.mkdir(mode=0o700)
            for name, data in _files(key, entry).items():
                _write_synced(staging / name, data)
            _sync_folder(staging)
            final.parent.mkdir(mode=0o700, exist_ok=True)
            if os.path.lexists(final):  # a damaged entry: rename can't replace a folder that is not empty
                final.rename(self._new_staging(key))
            staging.rename(final)
            _sync_folder(final.parent)
        finally:
            self._sweep(key)

    def _sweep(self, key: str) -> None:
        """Deletes what is in staging for a key whose lock is held: ours, and what a killed process left."""
        for path in self._staging.glob(f"{key}-*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    @contextlib.contextmanager
    def _lock(self, key: str, timeout: float) -> Iterator[None]:
        """Exclusive over processes and threads; _LockHeldError after `timeout` seconds.

        Keys share 4,096 lock files that are never deleted: deleting a lock file safely is harder than sharing one.
        Polling, because a blocking flock in a thread would not let Ctrl-C through.
        """
        with _explained(self.root):
            file = os.open(self._locks / key[:3], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with _explained(self.root):
                self._acquire(file, key, timeout)
            yield
        finally:
            os.close(file)

    def _acquire(self, file: int, key: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not _try_flock(file):
            if time.monotonic() >= deadline:
                holder = os.pread(file, 20, 0).decode(errors="replace").strip()
                raise _LockHeldError(
                    f"process {holder} has held the lock {self._locks / key[:3]} of the compile cache for more than "
                    f"{timeout:g} s; stop that process"
                )
            time.sleep(_POLL_SECONDS)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)

    def _folder(self, key: str) -> Path:
        return self._kernels / key[:2] / key

    def _new_staging(self, key: str) -> Path:
        return self._staging / f"{key}-{uuid.uuid4().hex}"


class _LockHeldError(CompileError):
    """The lock of a key is held by another process."""


def _files(key: str, entry: Entry) -> dict[str, bytes]:
    source = entry.source.encode()
    body = {
        "format": FORMAT,
        "key": key,
        "cubin_sha256": _sha256(entry.cubin),
        "source_sha256": _sha256(source),
        "facts": entry.facts,
    }
    record = json.dumps({"sha256": _body_sha256(body), **body}, indent=1)
    return {SOURCE: source, CUBIN: entry.cubin, RECORD: record.encode()}


def _read_entry(folder: Path, key: str) -> Entry:
    """Reads and verifies an entry; ValueError, KeyError, TypeError or OSError when anything is not as written."""
    record = json.loads(_read_private(folder / RECORD))
    body = {name: record[name] for name in ("format", "key", "cubin_sha256", "source_sha256", "facts")}
    cubin, source = _read_private(folder / CUBIN), _read_private(folder / SOURCE)
    expected = (record["sha256"], body["format"], body["key"], body["cubin_sha256"], body["source_sha256"])
    if expected != (_body_sha256(body), FORMAT, key, _sha256(cubin), _sha256(source)):
        raise ValueError("checksum mismatch")
    return Entry(cubin, source.decode(), body["facts"])


def _body_sha256(body: dict[str, Any]) -> str:
    return _sha256(json.dumps(body, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read_private(path: Path) -> bytes:
    """Contents of a regular file of ours that nobody else can write."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError("not a private file")
        return file.read()


def _make_private(folder: Path) -> None:
    """Creates a folder with mode 0700, or checks that an existing one can only be written by this user."""
    with _explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    if status.st_uid != os.geteuid():
        raise CompileError(
            f"compile cache {folder} belongs to user {status.st_uid}, not to you ({os.geteuid()}); "
            "set DDTREE_CACHE to a folder of your own"
        )
    if status.st_mode & 0o022:
        raise CompileError(
            f"compile cache {folder} can be written by other users (mode {stat.S_IMODE(status.st_mode):04o}) and "
            f"may hold foreign code; delete it, or run chmod -R go-w {shlex.quote(str(folder))} if you trust its contents"
        )


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turns a failing file operation (no space, read-only, no locks) into an error that names the way out."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CompileError(f"compile cache {folder}: {reason}; set DDTREE_CACHE to a folder you can write") from error


def _try_flock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_synced(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Flushes the folder itself, so that a rename survives a power cut in the order in which it was made."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
