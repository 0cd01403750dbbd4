"""Speed of generation on a GPU: plain decoding, chain and trees, in one table of Markdown.

    python tools/measure_generation.py models/kimi_tiny.yaml [--tokens 256] [--repeat 5]

Every figure is a median over the repeats of all prompts; the first run of each decoder is discarded. `host` is the time a
round spends in Python before its launch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from ddtree.graph.model import load
from ddtree.runtime.cuda.driver import Device
from ddtree.runtime.cuda.load import cuda_decoder
from ddtree.runtime.decoder import Decoder, Sampling
from ddtree.runtime.load import folders

CASES = [
    ("plain", ()),
    ("chain 7", ("tree.width=1", "tree.budget=7")),
    ("tree 7", ("tree.budget=7",)),
    ("tree 15", ("tree.budget=15",)),
    ("tree 31", ("tree.budget=31",)),
    ("tree 63", ("tree.budget=63",)),
]
PROMPTS = Path(__file__).parents[1] / "tests" / "data" / "kimi_tiny_greedy.json"


def measure(d: Decoder, prompts: list[list[int]], tokens: int, repeat: int) -> tuple[float, float, float, float]:
    """Tokens per second, tokens per round, milliseconds per round, host microseconds per round."""
    rates, per_round, round_ms, host_us = [], [], [], []
    for turn in range(repeat + 1):
        for p in prompts:
            slot, _ = d.start(p, Sampling(), tokens)
            begin, made, rounds, host = time.perf_counter(), 0, 0, 0.0
            while made < tokens - 1:
                done = d.round()[slot]
                made, rounds, host = made + len(done.emitted), rounds + 1, host + done.seconds.get("host", 0.0)
            seconds = time.perf_counter() - begin
            d.end(slot)
            if turn:
                rates.append(made / seconds)
                per_round.append(made / rounds)
                round_ms.append(1e3 * seconds / rounds)
                host_us.append(1e6 * host / rounds)
    return statistics.median(rates), statistics.mean(per_round), statistics.median(round_ms), statistics.median(host_us)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    prompts = [g["prompt_ids"] for g in json.loads(PROMPTS.read_text())]
    device = Device()
    print(f"{device.name}, {args.model}, {len(prompts)} prompts x {args.tokens} tokens, greedy\n")
    print("| decoding | load s | tok/s | tok/round | ms/round | host us/round | one by one, ms/round |")
    print("|---|---|---|---|---|---|---|")
    for name, settings in CASES:
        model = load(args.model, settings, draft=name != "plain")
        begin = time.perf_counter()
        d = cuda_decoder(model, folders(model, None, None), device)
        seconds = time.perf_counter() - begin
        rate, per_round, ms, host = measure(d, prompts, args.tokens, args.repeat)
        single = cuda_decoder(model, folders(model, None, None), device, captured=False)
        eager = measure(single, prompts[:2], args.tokens, 1)[2]
        print(
            f"| {name} | {seconds:.2f} | {rate:.0f} | {per_round:.2f} | {ms:.3f} | {host:.0f} | {eager:.2f} |",
            flush=True,
        )
        device.free_all()


if __name__ == "__main__":
    main()
