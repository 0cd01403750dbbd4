"""Sixteen processes on one cold cache, and processes that are killed while they write."""

import collections
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddtree.runtime.cache import CompileCache, Entry
from ddtree.runtime.compiler import compile_all
from ddtree.runtime.cubin import inspect
from ddtree.templates.target import TARGETS
from tests.compile.worker import KEY, RACE_SOURCES

ROOT = Path(__file__).parents[2]
PROCESSES = 16


def start(*args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.compile.worker", *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_sixteen_processes_compile_each_kernel_once(tmp_path: Path) -> None:
    workers = [start("race", tmp_path, number) for number in range(PROCESSES)]
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("ready-*"))) < PROCESSES and time.monotonic() < deadline:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    outputs = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * PROCESSES, outputs
    results = [json.loads(out) for out, _ in outputs]

    pairs = [(source.name, target) for source in RACE_SOURCES for target in TARGETS]
    fresh = collections.Counter((name, target) for rows in results for name, target, cached, _ in rows if not cached)
    assert fresh == dict.fromkeys(pairs, 1)
    compiles = collections.Counter((tmp_path / "compiled").read_text().splitlines())
    assert len(compiles) == len(pairs) and set(compiles.values()) == {1}

    digests = {tuple(digest for _, _, _, digest in rows) for rows in results}
    assert len(digests) == 1
    kernels = compile_all(RACE_SOURCES, list(TARGETS), cache=CompileCache(tmp_path / "cache"))
    assert all(kernel.cached and list(inspect(kernel.cubin).registers) == [kernel.name] for kernel in kernels)
    assert not list((tmp_path / "cache/staging").iterdir())


@pytest.mark.parametrize(
    ("call", "count", "published"),
    [
        ("fdopen", 2, False),  # kernel.cu written, kernel.cubin empty
        ("fsync", 1, False),  # kernel.cu written, not flushed
        ("fsync", 3, False),  # all files written
        ("fsync", 4, False),  # and flushed, but not their folder
        ("rename", 1, False),  # everything flushed, not renamed
        ("fsync", 5, True),  # renamed
    ],
)
def test_a_process_killed_while_writing_leaves_the_cache_usable(
    tmp_path: Path, call: str, count: int, published: bool
) -> None:
    worker = start("die", tmp_path, call, count)
    _, errors = worker.communicate(timeout=60)
    assert worker.returncode == -signal.SIGKILL, errors
    cache = CompileCache(tmp_path, lock_timeout=1)
    assert (cache.try_load(KEY) is not None) is published
    assert len(list((tmp_path / "staging").iterdir())) == (0 if published else 1)
    ours = Entry(b"\x7fELF" + bytes(100_000), "text", {})
    assert cache.get(KEY, lambda: ours) == (ours, published)
    assert cache.try_load(KEY) == ours and not list((tmp_path / "staging").iterdir())


def test_a_process_killed_while_replacing_a_damaged_entry(tmp_path: Path) -> None:
    ours = Entry(b"\x7fELF", "text", {})
    cache = CompileCache(tmp_path, lock_timeout=1)
    cache.get(KEY, lambda: ours)
    (path,) = tmp_path.glob("kernels/*/*/kernel.cubin")
    path.write_bytes(b"")
    worker = start("die", tmp_path, "rename", 2)  # the damaged entry is out of the way, the new one not in place
    worker.communicate(timeout=60)
    assert worker.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "staging").iterdir())) == 2 and cache.try_load(KEY) is None
    assert cache.get(KEY, lambda: ours) == (ours, False) and not list((tmp_path / "staging").iterdir())
