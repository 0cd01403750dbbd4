"""ddtree-compile: check, explain, draw and compile a model."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddtree.cli.common import Progress, find_model, run_command
from ddtree.cli.memory import memory_data, memory_table
from ddtree.errors import CompileError, UsageError
from ddtree.graph.buckets import needed_buckets
from ddtree.graph.build import Builder, Limits, build_ranks, build_step, steps_of
from ddtree.graph.draw import draw
from ddtree.graph.explain import amount, as_data, explain, table
from ddtree.graph.model import Model, load
from ddtree.graph.step_graph import StepGraph
from ddtree.runtime.cache import CompileCache
from ddtree.runtime.compiler import CompiledKernel, KernelSource, compile_all, report
from ddtree.runtime.load import folders
from ddtree.runtime.packed_files import pack_checkpoint
from ddtree.templates.budget import budget_tiles
from ddtree.templates.kernel import Tile
from ddtree.templates.program import distinct, program, tuning_of, with_buckets
from ddtree.templates.render import render_tile
from ddtree.templates.round import round_tiles
from ddtree.templates.target import DEFAULT_TARGET, target


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        "ddtree-compile", description="Check a model's YAML and generate its kernels.", allow_abbrev=False
    )
    p.add_argument("model", help="YAML file, or the name of a shipped model")
    p.add_argument(
        "--target",
        action="append",
        metavar="NAME",
        help=f"compute_120f or sm_90a; repeatable (default {DEFAULT_TARGET})",
    )
    p.add_argument("--tp", type=int, metavar="N", help="tensor-parallel ranks (default: the YAML's)")
    p.add_argument("--rank", type=int, default=0, metavar="R", help="rank that is explained and compiled (default 0)")
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a YAML value, such as tree.budget=7"
    )
    p.add_argument("--out", type=Path, metavar="DIR", help="write the cubins to DIR")
    p.add_argument("--jobs", type=int, metavar="N", help="compiler threads (default: the cores of this machine)")
    p.add_argument("--dump-source", type=Path, metavar="DIR", help="write the generated CUDA C to DIR")
    p.add_argument(
        "--explain", action="store_true", help="print steps, buffers, memory plan, bytes and FLOPs; compile nothing"
    )
    p.add_argument(
        "--ctx", type=int, default=1024, metavar="N", help="committed positions assumed by --explain (default 1024)"
    )
    p.add_argument(
        "--graph", type=Path, metavar="FILE", help="write the step graphs to FILE.mmd or FILE.dot; compile nothing"
    )
    p.add_argument(
        "--pack",
        type=Path,
        metavar="DIR",
        help="write every rank's weights to DIR as kernels want them; compile nothing",
    )
    p.add_argument("--weights", type=Path, metavar="DIR", help="with --pack: the checkpoint (default: the YAML's)")
    p.add_argument("--draft-weights", type=Path, metavar="DIR", help="with --pack: the drafter's (default: its YAML's)")
    p.add_argument("--check", action="store_true", help="check the YAML and all steps on all ranks; compile nothing")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")
    p.add_argument("-v", "--verbose", action="store_true", help="with --explain: list every op")
    return p


def _choosing(graphs: Sequence[StepGraph], limits: Limits) -> list[Tile]:
    """The kernels of `budget: auto`."""
    features = next((g.outputs["features"] for g in graphs if g.name == "verify" and "features" in g.outputs), None)
    return list(budget_tiles(limits, features.row_bytes(1)).values()) if features else []


def _kernels(model: Model, graphs: Sequence[StepGraph], args: argparse.Namespace) -> list[CompiledKernel]:
    """Render, compile and inspect every kernel for every target."""
    live = not args.quiet and sys.stderr.isatty()

    def progress(done: int, total: int, kernel: CompiledKernel) -> None:
        if live:
            print(
                f"\r{done} of {total} kernels ({kernel.name})\033[K",
                end="\n" if done == total else "",
                file=sys.stderr,
                flush=True,
            )

    compiled: list[CompiledKernel] = []
    limits = Limits.of(model)
    ops = with_buckets(distinct(graphs), needed_buckets(limits))
    between = [
        *round_tiles(limits, model.drafter.spec.mask_id if model.drafter else 0, forced=limits.block > 0).values(),
        *_choosing(graphs, limits),
    ]
    for name in args.target or [DEFAULT_TARGET]:
        tuning = tuning_of(model, name)
        kernels = program(ops, target(name), tuning).values()
        sources = [KernelSource(k.name, k.op.name(), k.source, k.tile.smem, k.tile.block) for k in kernels]
        sources += [KernelSource(t.name, t.template, render_tile(t), t.smem, t.block) for t in between]
        compiled += compile_all(
            sources, [name], jobs=args.jobs, cache=CompileCache(), dump_dir=args.dump_source, progress=progress
        )
    return compiled


def _pack(model: Model, graphs: Sequence[StepGraph], args: argparse.Namespace) -> list[str]:
    """Write packed weights; returns the files."""
    progress = Progress(quiet=args.quiet)
    where = folders(model, args.weights, args.draft_weights)
    files = pack_checkpoint(model, where, graphs, args.pack, progress.report)
    if not args.json and not args.quiet:
        size = sum(file.stat().st_size for file in files)
        print(f"{args.pack}: {len(files)} packed files, {amount(size)}; give this folder as --weights")
    return [str(file) for file in files]


def _write(kernels: Sequence[CompiledKernel], folder: Path) -> None:
    try:
        for kernel in kernels:
            place = folder / kernel.target
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{kernel.name}.cubin").write_bytes(kernel.cubin)
    except OSError as e:
        raise CompileError(f"cannot write to {folder}: {e.strerror}") from None


def _show(kernels: Sequence[CompiledKernel], seconds: float) -> None:
    head = ("kernel", "target", "threads", "regs", "smem", "blocks/SM", "cubin", "")
    lines = [
        (
            k.name, k.target, str(k.threads), str(k.registers), str(k.smem_bytes), str(k.blocks_per_sm), str(k.cubin_bytes),
            "cached" if k.cached else "",
        )
        for k in kernels
    ]  # fmt: skip
    print(table(head, lines))
    print(f"{len(kernels)} cubins, {sum(k.cached for k in kernels)} from the cache, {seconds:.1f} s")


def body(argv: Sequence[str]) -> int:
    """Parse and run."""
    args = parser().parse_args(argv)
    for name in args.target or []:
        target(name)
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, found {args.jobs}")
    model = load(find_model(args.model), args.set, ranks=args.tp)
    if not 0 <= args.rank < model.ranks:
        raise UsageError(f"--rank must be 0..{model.ranks - 1} for {model.ranks} ranks, found {args.rank}")
    for note in model.notes:
        print(note, file=sys.stderr)
    builder = Builder(model)
    graphs = [build_step(model, step, args.rank, builder) for step in steps_of(model)]
    looks: dict[str, Any] = {}
    if args.check:
        for step in steps_of(model):
            build_ranks(model, step)
        looks["check"] = "ok"
        if not args.json:
            print(f"{args.model}: ok, {len(graphs)} steps, {sum(len(g.ops) for g in graphs)} ops, {model.ranks} ranks")
    if args.graph:
        draw(graphs, args.graph)
        looks["graph"] = str(args.graph)
    if args.explain:
        where = target(args.target[0] if args.target else DEFAULT_TARGET)
        if args.json:
            looks["explain"] = {**as_data(graphs, context=args.ctx), **memory_data(model, where, args.rank)}
        else:
            looks["explain"] = explain(graphs, context=args.ctx, verbose=args.verbose)
            print(f"{looks['explain']}\n\n{memory_table(model, where, args.rank)}")
    if args.pack:
        looks["pack"] = _pack(model, graphs, args)
    if looks:
        if args.json:
            print(json.dumps({"model": model.target.spec.name, **looks}))
        return 0
    began = time.perf_counter()
    kernels = _kernels(model, graphs, args)
    seconds = time.perf_counter() - began
    if args.out:
        _write(kernels, args.out)
    if args.json:
        print(json.dumps(report(model.target.spec.name, kernels, seconds)))
    elif not args.quiet:
        _show(kernels, seconds)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ddtree-compile."""
    return run_command("ddtree-compile", body, argv)


if __name__ == "__main__":
    sys.exit(main())
