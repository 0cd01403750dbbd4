"""ddtree-bench: how fast a model's steps are on this GPU, against what their bytes allow, and how fast whole generation is."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddtree.cli.bench_generate import add_parser, generate
from ddtree.cli.common import Progress, find_model, run_command
from ddtree.errors import UsageError
from ddtree.graph.build import steps_of
from ddtree.graph.explain import table
from ddtree.graph.model import load
from ddtree.graph.rows import MAX_ROWS
from ddtree.graph.step_graph import StepName
from ddtree.runtime.device import choose

if TYPE_CHECKING:
    from ddtree.runtime.cuda.measure import StepTime


def counts(text: str) -> list[int]:
    """Row counts, as in 1,8,64."""
    try:
        rows = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected row counts such as 1,8,64, found {text!r}") from None
    if not all(1 <= n <= MAX_ROWS for n in rows):
        raise argparse.ArgumentTypeError(f"row counts must be 1..{MAX_ROWS}, found {text}")
    return sorted(set(rows))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser("ddtree-bench", description="Measure a model.", allow_abbrev=False)
    kinds = p.add_subparsers(dest="kind", required=True, metavar="WHAT")
    step = kinds.add_parser(
        "step",
        help="one rank's step and each of its ops, against a pure read of their bytes",
        description="One rank alone on one GPU, cold weights, one CUDA graph a step, medians. Collectives are left out.",
        allow_abbrev=False,
    )
    step.add_argument("model", help="YAML file, or the name of a shipped model")
    step.add_argument("--tp", type=int, metavar="N", help="tensor-parallel ranks (default: the YAML's)")
    step.add_argument("--rank", type=int, default=0, metavar="R", help="rank that is measured (default 0)")
    step.add_argument(
        "--weights", choices=["random"], default="random", help="random: made on the GPU, no file is read"
    )
    step.add_argument(
        "--step", choices=["verify", "draft", "both"], default="verify", help="which step (default verify)"
    )
    step.add_argument("--rows", type=counts, default=[1, 8, 16, 32, 64], metavar="N,N", help="rows of the verify step")
    step.add_argument("--ctx", type=int, default=4096, metavar="N", help="committed positions (default 4096)")
    step.add_argument(
        "--routing",
        choices=["independent", "router"],
        default="independent",
        help="independent: a seeded uniform choice replaces the router's, which still runs; random weights would let all rows "
        "choose the same few experts (default)",
    )
    step.add_argument("--seed", type=int, default=1, help="of weights, tree and routing")
    step.add_argument("--repeats", type=int, default=20, metavar="N", help="replays of each median (default 20)")
    step.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a YAML value")
    step.add_argument("--device", default="cuda", help="cuda or cuda:i")
    step.add_argument("--json", action="store_true", help="print one JSON object")
    step.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_parser(kinds)
    return p


def _check(args: argparse.Namespace, ranks: int, context: int) -> None:
    if not 0 <= args.rank < ranks:
        raise UsageError(f"--rank must be 0..{ranks - 1} for {ranks} ranks, found {args.rank}")
    if not 1 <= args.ctx <= context:
        raise UsageError(f"--ctx must be 1..{context}, the model's context, found {args.ctx}")
    if args.repeats < 1:
        raise UsageError(f"--repeats must be at least 1, found {args.repeats}")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Everything that `step` measures, as data."""
    model = load(find_model(args.model), args.set, ranks=args.tp)
    _check(args, model.ranks, model.target.spec.context)
    if args.step != "verify" and "draft" not in steps_of(model):
        raise UsageError(f"{args.model} does not draft, so that there is no draft step to measure")
    gpu = choose(args.device)
    if gpu is None:
        raise UsageError("a step is measured on a GPU; --device cpu has no kernels to time")
    from ddtree.runtime.cuda.driver import Device  # only here: --help needs no CUDA library
    from ddtree.runtime.cuda.load import compile_functions
    from ddtree.runtime.cuda.measure import Reader, measure_step
    from ddtree.runtime.cuda.rank import Rank
    from ddtree.templates.measure import stream_read_tile

    device, progress, began = Device(gpu), Progress(quiet=args.quiet).report, time.perf_counter()
    rows, draft = (args.rows if args.step != "draft" else []), args.step != "verify"
    given = args.routing == "independent"
    rank = Rank(
        model, device, args.rank, rows, args.ctx, given=given, draft=draft, seed=args.seed, progress=progress
    )  # fmt: skip
    ready = time.perf_counter() - began
    tile = stream_read_tile(device.target, 1)
    reader = Reader(device, compile_functions(device, [], [tile])[tile.name])
    bandwidth = reader.bandwidth()
    wanted: list[tuple[StepName, int]] = [("verify", n) for n in rows]
    if draft:
        wanted.append(("draft", rank.limits.block))
    steps = [measure_step(rank, reader, bandwidth, name, n, args.repeats) for name, n in wanted]
    return {
        "device": device.name, "model": model.target.spec.name, "ranks": model.ranks, "rank": args.rank, "context": args.ctx,
        "routing": args.routing, "weights": "random", "weight_bytes": rank.weight_bytes, "load_seconds": ready,
        "read_bandwidth": bandwidth, "steps": steps,
    }  # fmt: skip


def show(made: dict[str, Any]) -> str:
    """The measurement for people."""
    steps: list[StepTime] = made["steps"]
    bandwidth = made["read_bandwidth"]
    alone = " No all-reduce: one rank alone." if made["ranks"] > 1 else ""
    parts = [
        f"{made['device']}, {made['model']}, rank {made['rank']} of {made['ranks']}, context {made['context']}, "
        f"{made['weight_bytes'] / 1e9:.1f} GB of random weights, {made['routing']} routing.{alone}\n"
        f"read bandwidth {bandwidth / 1e9:.0f} GB/s (8 GiB, this run); ready in {made['load_seconds']:.1f} s"
    ]
    head = ("step", "rows", "experts", "launches", "GB", "ms", "floor ms", "ratio", "repeats")
    parts.append(
        table(
            head,
            [
                (
                    s.step, str(s.rows), f"{s.experts:.1f}", str(s.launches), f"{s.bytes / 1e9:.2f}", f"{s.us / 1e3:.3f}",
                    f"{s.floor_us / 1e3:.3f}", f"{s.us / s.floor_us:.2f}", "equal" if s.repeats_equal else "DIFFER",
                )
                for s in steps
            ],
        )
    )  # fmt: skip
    for s in steps:
        lines = [
            (
                o.name + ("" if o.cold or not o.bytes else " (warm)"), str(o.count), str(o.launches), f"{o.us:.2f}", f"{o.bytes / 1e6:.2f}",
                f"{o.bytes / o.us / 1e3:.0f}", f"{100 * o.bytes / (o.us * 1e-6) / bandwidth:.0f}%", f"{o.read_us:.2f}", f"{o.us * o.count / 1e3:.3f}",
            )
            for o in s.ops
        ]  # fmt: skip
        parts.append(
            table(
                (f"{s.step}, {s.rows} rows", "ops", "launches", "us", "MB", "GB/s", "of read", "read us", "all, ms"),
                lines,
            )
        )
    return "\n\n".join(parts)


def body(argv: Sequence[str]) -> int:
    """Parse and run."""
    args = parser().parse_args(argv)
    if args.kind == "generate":
        return generate(args)
    made = measure(args)
    if args.json:
        print(json.dumps(made | {"steps": [dataclasses.asdict(s) for s in made["steps"]]}))
    else:
        print(show(made))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ddtree-bench."""
    return run_command("ddtree-bench", body, argv)


if __name__ == "__main__":
    sys.exit(main())
