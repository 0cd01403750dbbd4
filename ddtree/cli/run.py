"""ddtree-run: generate text."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from ddtree.cli.common import Progress, find_model, run_command
from ddtree.errors import UsageError
from ddtree.graph.model import load
from ddtree.runtime.accept_trace import AcceptTrace
from ddtree.runtime.decoder import Round, Sampling
from ddtree.runtime.device import choose
from ddtree.runtime.engine import Engine, Request, Result
from ddtree.runtime.load import cpu_decoder, folders
from ddtree.runtime.text import Tokenizer
from ddtree.runtime.tree_text import draw_round, trace_line

DEFAULT_TOKENS = 128


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        "ddtree-run", description="Generate text with a model described in YAML.", allow_abbrev=False
    )
    p.add_argument("model", help="YAML file, or the name of a shipped model")
    source = p.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", metavar="TEXT", help="prompt (default: standard input)")
    source.add_argument("-f", "--file", type=Path, metavar="FILE", help="file with the prompt")
    source.add_argument("--chat", action="store_true", help="talk to the model, one line at a time")
    p.add_argument("--weights", type=Path, metavar="DIR", help="checkpoint folder (default: the YAML's)")
    p.add_argument(
        "--draft-weights", type=Path, metavar="DIR", help="the drafter's checkpoint folder (default: its YAML's)"
    )
    p.add_argument("-n", "--max-tokens", type=int, metavar="N", help=f"tokens to generate (default {DEFAULT_TOKENS})")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    p.add_argument(
        "--check-kernels",
        action="store_true",
        help="on a GPU, wait after each kernel, so that a fault names its op (slow)",
    )
    p.add_argument("--tp", type=int, metavar="N", help="tensor-parallel ranks (default: the YAML's)")
    p.add_argument("--no-spec", action="store_true", help="decode one token at a time, without drafter and tree")
    p.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a YAML value, such as tree.budget=auto",
    )
    p.add_argument("--temp", type=float, default=0.0, metavar="T", help="temperature; 0 is greedy (default)")
    p.add_argument("--top-k", type=int, default=0, metavar="K", help="sample among the K best tokens; 0 takes all")
    p.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample within the nucleus of mass P")
    p.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the sampling noise")
    p.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    p.add_argument(
        "--accept-trace",
        type=Path,
        metavar="FILE",
        help="for timings: JSON list of accepted lengths that rounds are forced to; the text means nothing",
    )
    p.add_argument("--show-tree", action="store_true", help="draw each round's tree on stderr")
    p.add_argument("--trace", type=Path, metavar="FILE", help="write one line of JSON per round")
    p.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    loud = p.add_mutually_exclusive_group()
    loud.add_argument("-q", "--quiet", action="store_true", help="nothing but the text")
    loud.add_argument("-v", "--verbose", action="store_true", help="say what is done")
    return p


def read_prompt(args: argparse.Namespace) -> str:
    """The prompt's text, from -p, -f or standard input."""
    if args.prompt is not None:
        return unicode_text(os.fsencode(args.prompt), "the prompt")
    if args.file is None:
        if sys.stdin is None:
            raise UsageError("standard input is closed; give a prompt with -p or -f")
        stream = getattr(sys.stdin, "buffer", None)
        return unicode_text(stream.read(), "standard input") if stream else sys.stdin.read()
    try:
        return unicode_text(args.file.read_bytes(), str(args.file))
    except OSError as e:
        raise UsageError(f"cannot read {args.file}: {e.strerror}") from None


def unicode_text(data: bytes, what: str) -> str:
    """UTF-8 text, byte for byte. Raises UsageError."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise UsageError(f"{what} is not UTF-8 text (byte {e.start})") from None


def start(args: argparse.Namespace, note: TextIO | None) -> Engine:
    """Load the model that the arguments name."""
    trace = AcceptTrace.read(args.accept_trace) if args.accept_trace else None
    gpu = choose(args.device)
    began = time.perf_counter()
    model = load(find_model(args.model), args.set, ranks=args.tp, draft=not args.no_spec)
    where = folders(model, args.weights, args.draft_weights)
    if note:
        for line in model.notes:
            print(line, file=note)
    tokenizer = Tokenizer(model.target.spec.text, where.target)
    progress = Progress(quiet=not args.verbose and not (note and sys.stderr.isatty()))
    if gpu is None:
        decoder, name = cpu_decoder(model, where, trace=trace, progress=progress.report), "the CPU"
    else:
        from ddtree.runtime.cuda.driver import Device  # only here: the CPU needs no CUDA library
        from ddtree.runtime.cuda.load import cuda_decoder

        device = Device(gpu)
        decoder, name = (
            cuda_decoder(model, where, device, checked=args.check_kernels, trace=trace, progress=progress.report),
            device.name,
        )
    if args.verbose and note:
        print(f"{model.target.spec.name} ready in {time.perf_counter() - began:.2f} s on {name}", file=note)
    return Engine(model, decoder, tokenizer)


class Watcher:
    """What happens at each round besides text: tree pictures and the trace."""

    def __init__(self, args: argparse.Namespace, engine: Engine, trace: TextIO | None, prompt: int) -> None:
        self.args, self.engine, self.trace, self.position, self.rounds = args, engine, trace, prompt, 0

    def __call__(self, done: Round) -> None:
        """Show and record one round."""
        self.rounds += 1
        if self.args.show_tree:
            print(f"\n{draw_round(self.rounds, done, self.engine.tokenizer)}", file=sys.stderr)
        if self.trace:
            print(trace_line(self.rounds, done, self.position), file=self.trace, flush=True)
        self.position += len(done.emitted)


def generate(args: argparse.Namespace, engine: Engine, prompt: Sequence[int], out: TextIO | None) -> Result:
    """Generate after prompt ids; text goes to `out` as it becomes final. Ctrl-C ends the answer, not the result."""
    limit = args.max_tokens if args.max_tokens is not None else max(1, min(DEFAULT_TOKENS, engine.room(prompt)))
    sampling = Sampling(args.temp, args.top_k, args.top_p, args.seed)
    forced = engine.decoder.trace
    request = Request(tuple(prompt), limit, sampling, tuple(args.stop), ignore_stops=forced is not None, trace=forced)
    if forced and out:
        print(f"[{forced.label}]", file=out)
    result = Result(request)
    with ExitStack() as stack:
        trace = None
        if args.trace:
            try:
                trace = stack.enter_context(args.trace.open("a" if args.chat else "w", encoding="utf-8"))
            except OSError as e:
                raise UsageError(f"cannot write {args.trace}: {e.strerror}") from None
        pieces = engine.generate(request, Watcher(args, engine, trace, len(prompt)))
        try:
            for piece, result in pieces:  # noqa: B007 (the newest result is what an interrupt leaves)
                if out:
                    out.write(piece)
                    out.flush()
        except KeyboardInterrupt:
            pieces.close()
            result.finish_reason = "interrupted"
    return result


def stats_line(result: Result, engine: Engine) -> str:
    """One line for people."""
    s = result.stats()
    line = f"{result.request.trace.label} | " if result.request.trace else ""
    line += f"prompt {s['prompt_tokens']} tok {s['prompt_tokens_per_second']:.0f} tok/s"
    line += f" | gen {s['output_tokens']} tok {s['output_tokens_per_second']:.1f} tok/s"
    line += f" | first token {s['prefill_seconds']:.2f} s"
    if result.accept_lengths:
        limits, budget = engine.decoder.limits, str(engine.decoder.budget)
        if limits.auto:
            share = s["drafting_rounds"] / len(result.rounds)
            budget = f"auto, {s['verified_rows_per_round']:.1f} rows, {100 * share:.0f}% of rounds draft"
        line += f" | accepted {s['mean_accept_length']:.2f} tok/round (budget {budget}, depth {limits.depths})"
    if result.rounds:
        ms = {name: 1e3 * seconds / len(result.rounds) for name, seconds in s["phase_seconds"].items()}
        parts = ", ".join(f"{name} {t:.1f}" for name, t in ms.items())
        line += f" | {1e3 * s['seconds_per_round']:.1f} ms/round ({parts})"
    return line


def chat(args: argparse.Namespace, engine: Engine) -> int:
    """Turns from standard input, answers to standard output, until the input ends."""
    form, messages = engine.chat_format(), []
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return 0
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.rstrip("\n")})
        result = generate(args, engine, form.render(messages).ids, sys.stdout)
        print(flush=True)
        messages.append({"role": "assistant", "content": result.text})
        if not args.quiet:
            print(stats_line(result, engine), file=sys.stderr)


def body(argv: Sequence[str]) -> int:
    """Parse and run."""
    args = parser().parse_args(argv)
    if args.chat and args.json:
        raise UsageError("--json prints one object and --chat holds a conversation; give one of them")
    note = None if args.quiet else sys.stderr
    if args.chat:
        return chat(args, start(args, note))
    text = read_prompt(args)
    engine = start(args, note)
    prompt = engine.tokenizer.encode_prompt(text)
    shown = None if args.json else sys.stdout
    result = generate(args, engine, prompt, shown)
    if args.json:
        print(json.dumps(result.as_json()))
    else:
        print(flush=True)
    if note:
        print(stats_line(result, engine), file=note)
    return 130 if result.finish_reason == "interrupted" else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ddtree-run."""
    return run_command("ddtree-run", body, argv)


if __name__ == "__main__":
    sys.exit(main())
