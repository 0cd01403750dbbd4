"""ddtree-bench generate: plain decoding, a chain, trees of fixed size and `budget: auto` on the same prompts, in one table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree.cli.common import Progress, find_model
from ddtree.errors import UsageError
from ddtree.graph.build import Limits
from ddtree.graph.model import load
from ddtree.graph.schema import MAX_BUDGET
from ddtree.runtime.accept_trace import AcceptTrace
from ddtree.runtime.decoder import Decoder, Round, Sampling
from ddtree.runtime.device import choose
from ddtree.runtime.load import cpu_decoder, folders
from ddtree.runtime.text import Tokenizer

PROMPTS = (  # unless --prompts gives others
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "import numpy as np\n\n\ndef softmax(x, axis=-1):\n",
    "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self, item):\n",
    "Once upon a time there was a",
)
PHASES = ("draft", "verify", "commit")


@dataclass(frozen=True)
class Case:
    """One way to decode: its name in the table, and the settings that make it."""

    name: str
    settings: tuple[str, ...] = ()
    draft: bool = True


@dataclass
class Row:
    """What one case did. Times of a round in microseconds.

    tokens_per_second  median over the runs          accept_length  tokens of a round      rows  verified by a round
    drafts             share of rounds that draft    phases_us      by name, on a GPU by its own clock
    wall_us            between two rounds, as the host sees it
    host_us            processor time of this process; None where the host computes the rounds itself
    idle_share         of the time, in which the GPU waited between rounds; None without one
    """

    case: str
    load_seconds: float
    rounds: int
    tokens_per_second: float
    accept_length: float
    rows: float
    drafts: float
    wall_us: float
    phases_us: dict[str, float]
    host_us: float | None
    idle_share: float | None


@dataclass
class Run:
    """One prompt decoded once: tokens behind the first, seconds, processor seconds, rounds."""

    tokens: int
    seconds: float
    busy: float
    rounds: list[Round]


def budgets(text: str) -> list[int]:
    """Tree sizes, as in 4,7,15."""
    try:
        found = [int(part) for part in text.split(",") if part]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected tree sizes such as 4,7,15, found {text!r}") from None
    if not all(1 <= n <= MAX_BUDGET for n in found):
        raise argparse.ArgumentTypeError(f"tree sizes must be 1..{MAX_BUDGET}, found {text}")
    return sorted(set(found))


def add_parser(kinds: Any) -> None:
    """The subcommand's arguments."""
    p = kinds.add_parser(
        "generate",
        help="tokens per second without drafts, with a chain, with trees of several sizes and with budget auto",
        description="Whole generation, one prompt at a time; the first run of every prompt is discarded.",
        allow_abbrev=False,
    )
    p.add_argument("model", help="YAML file, or the name of a shipped model")
    p.add_argument("--weights", type=Path, metavar="DIR", help="checkpoint folder (default: the YAML's)")
    p.add_argument("--draft-weights", type=Path, metavar="DIR", help="the drafter's (default: its YAML's)")
    p.add_argument("--budgets", type=budgets, default=[4, 7, 15, 31, 63], metavar="N,N", help="sizes of fixed trees")
    p.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="JSON list of texts, of objects with a `prompt`, or of lists of ids",
    )
    p.add_argument("--tokens", type=int, default=256, metavar="N", help="tokens of each run (default 256)")
    p.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each prompt that count (default 3)")
    p.add_argument("--temp", type=float, default=0.0, metavar="T", help="temperature; 0 is greedy (default)")
    p.add_argument(
        "--accept-trace", type=Path, metavar="FILE", help="JSON list of accepted lengths that rounds are forced to"
    )
    p.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a YAML value in every case"
    )
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default auto)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")


def cases(sizes: Sequence[int], *, forced: bool) -> list[Case]:
    """Every row of the table. Where accepted lengths are forced there is none without a draft."""
    chain = Case("chain", ("tree.width=1", f"tree.budget={MAX_BUDGET}"))
    fixed = [Case(f"tree {n}", (f"tree.budget={n}",)) for n in sizes]
    return [*([] if forced else [Case("no-spec", draft=False)]), chain, *fixed, Case("auto", ("tree.budget=auto",))]


def decode(d: Decoder, prompt: Sequence[int], tokens: int, sampling: Sampling) -> Run:
    """Decode `tokens` tokens after a prompt. The rate begins after the first token."""
    slot, _ = d.start(prompt, sampling, tokens)
    rounds, made = list[Round](), 0
    began, busy = time.perf_counter(), time.process_time()
    try:
        while made < tokens - 1:
            rounds.append(d.round()[slot])
            made += len(rounds[-1].emitted)
        return Run(made, time.perf_counter() - began, time.process_time() - busy, rounds)
    finally:
        d.end(slot)


def summary(case: Case, load_seconds: float, runs: Sequence[Run], *, gpu: bool) -> Row:
    """The runs of a case as a row. The idle time before a run's first round belongs to no round."""
    rounds = [r for run in runs for r in run.rounds]
    n, total = len(rounds), {name: sum(r.seconds[name] for r in rounds) for name in PHASES}
    idle = sum(r.seconds.get("host", 0.0) for run in runs for r in run.rounds[1:])
    return Row(
        case.name, load_seconds, n,
        statistics.median(run.tokens / run.seconds for run in runs),
        sum(run.tokens for run in runs) / n,
        sum(len(r.tree) for r in rounds) / n,
        sum(case.draft and (r.choice is None or r.choice.draft) for r in rounds) / n,
        1e6 * sum(run.seconds for run in runs) / n,
        {name: 1e6 * seconds / n for name, seconds in total.items()},
        1e6 * sum(run.busy for run in runs) / n if gpu else None,
        idle / (idle + sum(total.values())) if gpu else None,
    )  # fmt: skip


def read_prompts(file: Path | None, tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of every prompt. Raises UsageError."""
    try:
        given = json.loads(file.read_text(encoding="utf-8")) if file else list(PROMPTS)
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot read {file}: {e}") from None
    given = [p.get("prompt") if isinstance(p, dict) else p for p in given] if isinstance(given, list) else []
    ids = [tokenizer.encode_prompt(p) if isinstance(p, str) else p for p in given]
    if not ids or not all(isinstance(p, list) and p and all(type(i) is int for i in p) for p in ids):
        raise UsageError(
            f"{file}: expected a JSON list of prompts, each a text, an object with a text `prompt`, or a list of ids"
        )
    return ids


class Maker:
    """Decoders of the cases, one at a time."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.gpu, self.name = args, choose(args.device), "CPU"
        self.device: Any = None
        self.trace = AcceptTrace.read(args.accept_trace) if args.accept_trace else None
        if self.gpu is not None:
            from ddtree.runtime.cuda.driver import Device  # only here: the CPU needs no CUDA library

            self.device = Device(self.gpu)
            self.name = self.device.name

    def decoder(self, case: Case) -> Decoder:
        """The decoder of a case."""
        args = self.args
        settings = (*args.set, "decode.stop.ids=[]", *case.settings)
        model = load(find_model(args.model), settings, draft=case.draft)
        where = folders(model, args.weights, args.draft_weights)
        if self.device is None:
            return cpu_decoder(model, where, trace=self.trace)
        from ddtree.runtime.cuda.load import cuda_decoder

        return cuda_decoder(model, where, self.device, trace=self.trace)

    def release(self) -> None:
        """Memory of the last decoder."""
        if self.device is not None:
            self.device.free_all()


def measure(args: argparse.Namespace, report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Everything that `generate` measures, as data."""
    if args.tokens < 2 or args.repeat < 1:
        raise UsageError(f"--tokens must be at least 2 and --repeat at least 1, found {args.tokens} and {args.repeat}")
    maker, sampling = Maker(args), Sampling(args.temp, seed=1)
    model = load(find_model(args.model), args.set)
    if not Limits.of(model).block:
        raise UsageError(f"{args.model} does not draft, so that there is nothing to compare")
    tokenizer = Tokenizer(model.target.spec.text, folders(model, args.weights, args.draft_weights).target)
    prompts, rows, costs = read_prompts(args.prompts, tokenizer), list[Row](), None
    todo = cases(args.budgets, forced=maker.trace is not None)
    for at, case in enumerate(todo):
        began = time.perf_counter()
        d = maker.decoder(case)
        ready = time.perf_counter() - began
        turns = [[decode(d, p, args.tokens, sampling) for p in prompts] for _ in range(args.repeat + 1)]
        rows.append(summary(case, ready, [run for turn in turns[1:] for run in turn], gpu=maker.gpu is not None))
        if d.limits.auto:
            costs = dataclasses.asdict(d.costs())
        maker.release()
        report("cases", at + 1, len(todo))
    return {
        "model": model.target.spec.name, "device": maker.name, "prompts": len(prompts), "tokens": args.tokens,
        "repeat": args.repeat, "temperature": args.temp, "accept_trace": maker.trace.label if maker.trace else None,
        "costs": costs, "rows": rows,
    }  # fmt: skip


def show(made: dict[str, Any]) -> str:
    """The measurement as Markdown."""
    lines = [f"**{made['accept_trace']}**", ""] if made["accept_trace"] else []
    how = "greedy" if made["temperature"] == 0 else f"temperature {made['temperature']:g}"
    lines.append(
        f"{made['model']} on {made['device']}: {made['prompts']} prompts x {made['tokens']} tokens, {how}, median of "
        f"{made['repeat']} runs of each after one that does not count. us are of a round.\n"
    )
    heads = (
        "decoding",
        "tok/s",
        "accepted",
        "rows",
        "drafts",
        "us",
        *(f"{p} us" for p in PHASES),
        "host us",
        "GPU idle",
        "load s",
    )
    lines += [f"| {' | '.join(heads)} |", f"|---{'|---:' * (len(heads) - 1)}|"]
    for r in made["rows"]:
        cells = [
            r.case, f"{r.tokens_per_second:.0f}", f"{r.accept_length:.2f}", f"{r.rows:.1f}", f"{100 * r.drafts:.0f}%", f"{r.wall_us:.0f}",
            *(f"{r.phases_us[p]:.0f}" for p in PHASES), "-" if r.host_us is None else f"{r.host_us:.1f}",
            "-" if r.idle_share is None else f"{100 * r.idle_share:.1f}%", f"{r.load_seconds:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if made["costs"]:
        verify = ", ".join(f"{ms:.3f}" for ms in made["costs"]["verify"])
        lines.append(
            f"\nCosts that auto went by, ms: a draft {made['costs']['draft']:.3f}; rounds by row capacity {verify}"
        )
    return "\n".join(lines)


def generate(args: argparse.Namespace) -> int:
    """Measure and print."""
    progress = Progress(quiet=args.quiet)
    made = measure(args, progress.count)
    if args.json:
        print(json.dumps(made | {"rows": [dataclasses.asdict(r) for r in made["rows"]]}))
    else:
        print(show(made))
    return 0
