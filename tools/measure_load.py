"""Speed and memory of loading a checkpoint, beside a plain read of the same files and, on a GPU, a plain copy to it.

    python tools/measure_load.py MODEL.yaml [--weights DIR] [--draft-weights DIR] [--ranks 0,1] [--cold] [--host] [--gpu N]

Without `--gpu` what the ranks get is counted and dropped. `--host` packs on the host instead of leaving it to GPUs. `--cold`
asks the system to forget the files before each reading. With `--gpu` all given ranks load into that one GPU.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ddtree.errors import DdtreeError
from ddtree.graph.build import Builder, build_step, steps_of
from ddtree.graph.model import load
from ddtree.runtime.delivery import Sink
from ddtree.runtime.launches import Place
from ddtree.runtime.load import folders
from ddtree.runtime.order import Order
from ddtree.runtime.packed_files import load_weights

BLOCK = 8 << 20


class Counter:
    """A sink that counts."""

    def __init__(self, rearranges: bool) -> None:
        self.rearranges, self.allocated, self.written = rearranges, 0, 0

    def allocate(self, places: Sequence[Place], nbytes: int) -> None:
        """Count what is wanted."""
        self.allocated += nbytes

    def write(self, place: Place, offset: int, data: np.ndarray) -> None:
        """Count what has come."""
        self.written += data.nbytes

    def rearrange(self, place: Place, offset: int, raw: np.ndarray, order: Order) -> None:
        """Count what it would become."""
        self.written += raw.nbytes // order.source * order.nbytes


def files_of(*where: Path | None) -> list[Path]:
    """The safetensors files of folders."""
    return sorted(file for folder in where if folder for file in folder.glob("*.safetensors"))


def forget(files: Sequence[Path]) -> None:
    """Drop files from the page cache."""
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(files: Sequence[Path]) -> None:
    """Read files from end to end, one after the other."""
    buffer = bytearray(BLOCK)
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def on_gpu(stack: ExitStack, index: int, ranks: Sequence[int]) -> Mapping[int, Sink]:
    """Sinks of one GPU, after a plain copy to it."""
    from ddtree.runtime.cuda.driver import Device
    from ddtree.runtime.cuda.load import compile_functions
    from ddtree.runtime.cuda.sink import DeviceSink, loading_tiles

    device = Device(index)
    stack.callback(device.close)
    data = np.zeros(1 << 30, np.uint8)
    device.upload(data[:BLOCK], "a test")  # pinned memory is there now

    def copy() -> None:
        device.upload(data, "a test")
        device.synchronize()

    print(f"plain copy to {device.name}: {data.nbytes / 1e9 / seconds(copy):.2f} GB/s")
    functions = compile_functions(device, [], loading_tiles(device.target))
    return {rank: stack.enter_context(DeviceSink(device, functions)) for rank in ranks}


def main() -> int:
    """Parse, measure, print."""
    p = argparse.ArgumentParser(description="Measure how fast a checkpoint is loaded.")
    p.add_argument("model", type=Path)
    p.add_argument("--weights", type=Path)
    p.add_argument("--draft-weights", type=Path)
    p.add_argument("--tp", type=int)
    p.add_argument("--ranks", help="ranks that load, separated by commas (default: all)")
    p.add_argument("--workers", type=int, help="threads that read (default: the cores, at most 32)")
    p.add_argument("--cold", action="store_true")
    p.add_argument("--host", action="store_true")
    p.add_argument("--gpu", type=int)
    args = p.parse_args()
    try:
        model = load(args.model, ranks=args.tp)
        where = folders(model, args.weights, args.draft_weights)
        ranks = [int(r) for r in args.ranks.split(",")] if args.ranks else list(range(model.ranks))
        builder = Builder(model)
        graphs = [build_step(model, step, 0, builder) for step in steps_of(model)]
        files = files_of(where.target, where.draft)
        size = sum(file.stat().st_size for file in files) / 1e9
        if args.cold:
            forget(files)
        print(f"plain read: {size / seconds(lambda: read(files)):.2f} GB/s of {size:.2f} GB")
        if args.cold:
            forget(files)
        with ExitStack() as stack:
            counters = {rank: Counter(not args.host) for rank in ranks}
            sinks: Mapping[int, Sink] = counters if args.gpu is None else on_gpu(stack, args.gpu, ranks)
            took = seconds(lambda: load_weights(model, where, graphs, sinks, workers=args.workers))
    except DdtreeError as e:
        print(f"measure_load: error: {e}", file=sys.stderr)
        return e.exit_code
    if args.gpu is None:
        assert all(c.written == c.allocated for c in counters.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(
        f"load: {size / took:.2f} GB/s, {took:.1f} s for {len(ranks)} of {model.ranks} ranks; most host memory {peak:.2f} GB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
