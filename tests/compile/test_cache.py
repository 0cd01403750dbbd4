"""CompileCache: damage, locks, permissions, pruning. No NVRTC here: entries are made up."""

import fcntl
import hashlib
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from ddtree.errors import CompileError
from ddtree.runtime.cache import CompileCache, Entry, content_key, default_root

KEY = hashlib.sha256(b"a key").hexdigest()
ENTRY = Entry(b"\x7fELF" + bytes(range(256)), "__global__ void k() {}\n", {"registers": 40, "spill_bytes": 0})
FILES = ("kernel.cu", "kernel.cubin", "kernel.json")


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache(tmp_path / "cache", lock_timeout=5)


def folder(cache: CompileCache, key: str = KEY) -> Path:
    return cache.root / "kernels" / key[:2] / key


def put(cache: CompileCache, text: str, size: int = 0) -> str:
    key = hashlib.sha256(text.encode()).hexdigest()
    cache.get(key, lambda: Entry(bytes(size), text, {}))
    return key


def test_an_entry_is_built_once_and_read_back_whole(cache: CompileCache) -> None:
    assert cache.try_load(KEY) is None
    assert cache.get(KEY, lambda: ENTRY) == (ENTRY, False)
    assert cache.get(KEY, lambda: pytest.fail("built twice")) == (ENTRY, True)
    assert sorted(path.name for path in folder(cache).iterdir()) == sorted(FILES)
    assert (folder(cache) / "kernel.cu").read_text() == ENTRY.source


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage", ["empty", "truncated", "one byte short", "longer", "zeroed", "removed", "folder", "link"]
)
def test_a_damaged_entry_is_never_loaded_and_built_again(cache: CompileCache, name: str, damage: str) -> None:
    cache.get(KEY, lambda: ENTRY)
    path = folder(cache) / name
    data = path.read_bytes()
    new = {"empty": b"", "truncated": data[: len(data) // 2], "one byte short": data[:-1], "longer": data + b"\0"}
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "link":
        (cache.root / "elsewhere").write_bytes(data)
        path.symlink_to(cache.root / "elsewhere")
    elif damage != "removed":
        path.write_bytes(new.get(damage, bytes(len(data))))
        path.chmod(0o600)
    assert cache.try_load(KEY) is None
    assert cache.get(KEY, lambda: ENTRY) == (ENTRY, False)
    assert cache.try_load(KEY) == ENTRY and path.read_bytes() == data
    assert not list((cache.root / "staging").iterdir())


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_is_believed(cache: CompileCache, name: str) -> None:
    cache.get(KEY, lambda: ENTRY)
    path = folder(cache) / name
    data = path.read_bytes()
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        assert cache.try_load(KEY) in ((None,) if name != "kernel.json" else (None, ENTRY)), position
    path.write_bytes(data)
    assert cache.try_load(KEY) == ENTRY


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"sha256": 1}', "[" * 100_000, "\udcff"])
def test_a_foreign_record_is_a_miss(cache: CompileCache, text: str) -> None:
    cache.get(KEY, lambda: ENTRY)
    (folder(cache) / "kernel.json").write_text(text, errors="surrogateescape")
    assert cache.try_load(KEY) is None


def test_an_entry_under_another_key_is_a_miss(cache: CompileCache) -> None:
    cache.get(KEY, lambda: ENTRY)
    other = KEY[:-1] + ("0" if KEY[-1] != "0" else "1")
    folder(cache).rename(folder(cache, other))
    assert cache.try_load(other) is None


def test_a_file_that_others_can_write_is_not_loaded(cache: CompileCache) -> None:
    cache.get(KEY, lambda: ENTRY)
    (folder(cache) / "kernel.cubin").chmod(0o620)
    assert cache.try_load(KEY) is None


def test_folders_and_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = CompileCache(tmp_path / "cache")
        cache.get(KEY, lambda: ENTRY)
    finally:
        os.umask(before)
    paths = [cache.root, *cache.root.rglob("*")]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir()}
    assert modes == {0o700} and {stat.S_IMODE(p.stat().st_mode) for p in paths if p.is_file()} == {0o600}


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("name", ["", "kernels", "locks", "staging"])
def test_a_folder_that_others_can_write_is_refused(cache: CompileCache, name: str, mode: int) -> None:
    (cache.root / name).chmod(mode)
    with pytest.raises(CompileError, match=rf"can be written by other users \(mode {mode:04o}\).*chmod -R go-w"):
        CompileCache(cache.root)
    (cache.root / name).chmod(0o755)
    CompileCache(cache.root)


def test_a_folder_of_another_user_is_refused(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(CompileError, match=r"belongs to user .*set DDTREE_CACHE"):
        CompileCache(cache.root)


def test_a_path_that_can_not_be_a_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CompileError, match=r"compile cache .*Not a directory; set DDTREE_CACHE"):
        CompileCache(tmp_path / "file" / "cache")


def test_a_full_disk_is_explained_and_leaves_nothing(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CompileError, match="No space left on device; set DDTREE_CACHE"):
        cache.get(KEY, lambda: ENTRY)
    assert not list((cache.root / "staging").iterdir()) and cache.try_load(KEY) is None


def test_a_failing_build_publishes_nothing_and_releases_the_lock(cache: CompileCache) -> None:
    def build() -> Entry:
        raise CompileError("no")

    with pytest.raises(CompileError, match="no"):
        cache.get(KEY, build)
    assert cache.get(KEY, lambda: ENTRY) == (ENTRY, False)


def test_threads_that_ask_at_once_build_once(cache: CompileCache) -> None:
    barrier, builds, results = threading.Barrier(16), [], []

    def build() -> Entry:
        builds.append(1)
        time.sleep(0.05)
        return ENTRY

    def ask() -> None:
        barrier.wait()
        results.append(cache.get(KEY, build))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1 and [entry for entry, _ in results] == [ENTRY] * 16
    assert sum(not cached for _, cached in results) == 1


def test_a_lock_that_never_comes_free_names_its_holder(cache: CompileCache) -> None:
    impatient = CompileCache(cache.root, lock_timeout=0.05)

    def slow() -> Entry:
        with pytest.raises(CompileError, match=rf"process {os.getpid()} has held the lock .* for more than 0.05 s"):
            impatient.get(KEY, lambda: pytest.fail("built under another's lock"))
        return ENTRY

    assert cache.get(KEY, slow) == (ENTRY, False)


def test_prune_removes_the_longest_unused_down_to_the_size(cache: CompileCache) -> None:
    keys = [put(cache, text, size=10_000) for text in "abcd"]
    now = time.time()
    for age, key in zip((3, 1, 4, 2), keys, strict=True):
        os.utime(folder(cache, key) / "kernel.json", (now - age * 1000, now - age * 1000))
    pruned = cache.prune(max_bytes=25_000)
    assert (pruned.removed, pruned.kept) == (2, 2) and pruned.kept_bytes <= 25_000 < 40_000 < (
        pruned.kept_bytes + pruned.removed_bytes
    )
    assert [cache.try_load(key) is not None for key in keys] == [False, True, False, True]


def test_prune_removes_what_is_too_old_and_a_load_renews(cache: CompileCache) -> None:
    old, used, fresh = put(cache, "old"), put(cache, "used"), put(cache, "fresh")
    for key in (old, used):
        os.utime(folder(cache, key) / "kernel.json", (time.time() - 10 * 86_400,) * 2)
    assert cache.try_load(used)
    cache.prune(max_age_days=5)
    assert [cache.try_load(key) is not None for key in (old, used, fresh)] == [False, True, True]


def test_prune_spares_locked_keys_and_sweeps_remains(cache: CompileCache) -> None:
    key = put(cache, "busy")
    remains = {name: cache.root / "staging" / f"{name}-1234" for name in (key, KEY)}
    for path in remains.values():
        path.mkdir()
        (path / "kernel.cubin").touch()
    with (cache.root / "locks" / key[:3]).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cache.prune(max_bytes=0).removed == 0
        assert remains[key].exists() and not remains[KEY].exists() and cache.try_load(key)
    assert cache.prune(max_bytes=0).removed == 1
    assert cache.try_load(key) is None and not list((cache.root / "staging").iterdir())


def test_default_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DDTREE_CACHE", raising=False)
    assert default_root() == Path("/home/me/.cache/ddtree")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_root() == Path("/x/ddtree")
    monkeypatch.setenv("DDTREE_CACHE", "/own")
    assert default_root() == Path("/own")


def test_a_key_depends_on_every_part_and_not_on_their_order() -> None:
    assert content_key({"a": "1", "b": "2"}) == content_key({"b": "2", "a": "1"}) != content_key({"a": "12", "b": ""})
    assert len(content_key({})) == 64
