"""One process of the cache tests: `python -m tests.compile.worker race|die ...`."""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from ddtree.runtime import nvrtc
from ddtree.runtime.cache import CompileCache, Entry
from ddtree.runtime.compiler import compile_all
from ddtree.templates.target import TARGETS
from tests.compile.sources import BF16, scale

RACE_SOURCES = [scale(2), scale(3), BF16]
KEY = hashlib.sha256(b"the entry that is written while the process dies").hexdigest()


def race(root: Path, me: str) -> None:
    """Waits for the file `go`, compiles everything, appends to `compiled` for each compile, prints the result."""
    compile_unit = nvrtc.compile_unit

    def counted(unit: nvrtc.Unit, headers: nvrtc.CudaHeaders) -> tuple[bytes, str]:
        with (root / "compiled").open("a") as log:
            log.write(f"{unit.program} {unit.target}\n")
        return compile_unit(unit, headers)

    nvrtc.compile_unit = counted
    nvrtc.version()
    (root / f"ready-{me}").touch()
    while not (root / "go").exists():
        time.sleep(0.002)
    kernels = compile_all(RACE_SOURCES, list(TARGETS), jobs=2, cache=CompileCache(root / "cache"))
    print(json.dumps([[k.name, k.target, k.cached, hashlib.sha256(k.cubin).hexdigest()] for k in kernels]))


def die(root: Path, call: str, count: int) -> None:
    """Publishes an entry and is killed at the `count`-th call of os.`call` from here on."""
    cache, real, left = CompileCache(root), getattr(os, call), [count]

    def fatal(*args: object) -> object:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)

    setattr(os, call, fatal)
    cache.get(KEY, lambda: Entry(b"\x7fELF" + bytes(100_000), "text", {}))
    sys.exit("survived")


if __name__ == "__main__":
    if sys.argv[1] == "race":
        race(Path(sys.argv[2]), sys.argv[3])
    else:
        die(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
