"""What the commands share: finding models, errors as one line, progress on a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddtree.errors import DdtreeError, UsageError

PACKAGED = Path(__file__).resolve().parents[1] / "models"


def find_model(name: str) -> Path:
    """The YAML file of a model: a path, or the name of a model in ./models or in the package."""
    path = Path(name)
    places = [path, Path("models") / f"{name}.yaml", PACKAGED / f"{name}.yaml", PACKAGED / path.name]
    found = next((p for p in places if p.is_file()), None)
    if found is None:
        known = sorted({p.stem for folder in (Path("models"), PACKAGED) for p in folder.glob("*.yaml")})
        raise UsageError(f"there is no file {name}" + (f"; known models: {', '.join(known)}" if known else ""))
    return found


def run_command(name: str, body: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run a command's body; an error becomes one line on stderr and the error's exit code."""

    def failed(message: str, code: int) -> int:
        if sys.stderr is not None:
            print(f"{name}: error: {' '.join(message.split())}", file=sys.stderr)
        return code

    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # text leaves as UTF-8, whatever the locale says
                stream.reconfigure(encoding="utf-8", errors="replace")
        code = body(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except DdtreeError as e:
        return failed(str(e), e.exit_code)
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout left, as `| head` does
        _mute()
        return 141
    except OSError as e:  # a full disk, most often
        _mute()
        return failed(f"cannot write{f' {e.filename}' if e.filename else ''}: {e.strerror or e}", UsageError.exit_code)
    except MemoryError as e:
        return failed(f"out of memory ({e}); ask for a smaller context or fewer sequences", UsageError.exit_code)


def _mute() -> None:
    """Let what is still buffered for stdout go nowhere, so that the interpreter's own flush at exit does not fail too."""
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress:
    """A line that is redrawn on a terminal and printed once, at the end, elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet or sys.stderr is None
        self.live = not self.quiet and sys.stderr.isatty()
        self.started: dict[str, float] = {}
        self.drawn = 0.0

    def count(self, what: str, done: int, total: int) -> None:
        """Report things of which `done` of `total` are ready."""
        if self.live:
            print(f"\r{what}: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    def report(self, what: str, done: int, total: int) -> None:
        """Report `done` of `total`: bytes of something being loaded, or kernels."""
        if self.quiet:
            return
        now = time.perf_counter()
        begin = self.started.setdefault(what, now)
        ended = done >= total
        if ended or (self.live and now - self.drawn > 0.1):
            self.drawn = now
            seconds = max(now - begin, 1e-6)
            size = f"{done / 1e9:.3f} of {total / 1e9:.3f} GB, {done / 1e9 / seconds:.2f} GB/s"
            line = f"{what}: {done} of {total}" if what == "kernels" else f"{what}: {size}"
            print(("\r" if self.live else "") + line, end="\n" if ended else "", file=sys.stderr, flush=True)
            if ended:
                self.started.pop(what)
