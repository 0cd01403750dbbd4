"""Forced accepted lengths: what rounds then accept, on the host and by the kernel, and that every output says so."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from ddtree.cli.run import main
from ddtree.errors import UsageError
from ddtree.graph.model import load
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.runtime.accept_trace import AcceptTrace
from ddtree.runtime.decoder import Sampling
from ddtree.runtime.load import cpu_decoder, folders
from tests.emulator import KernelError
from tests.runtime.decoders import GOLDENS, ROOT
from tests.steps.machine import AUTO, CONFIGS
from tests.steps.test_control import random_round

TRACE = AcceptTrace("some.json", (4, 1, 8, 2, 3))
SHAPES = [CONFIGS[0], CONFIGS[1], AUTO]
MUTATIONS = [
    ("force_accept.cuh", "trace[1 + turns[slot] % trace[0]]", "trace[turns[slot] % trace[0]]"),
    ("force_accept.cuh", "&& depth < wanted", "&& depth <= wanted"),
    ("force_accept.cuh", "depth > deepest &&", "depth >= deepest &&"),
    ("force_accept.cuh", "chosen[first[i] + node]", "chosen[node]"),
    ("force_accept.cuh", "length >= left ? 2", "length > left ? 2"),
    ("force_accept.cuh", "    ++turns[slot];\n", ""),
    ("force_accept.cuh", "path[d] = emitted[d] = -1", "path[d] = -1"),
]


def test_the_deepest_node_within_the_length() -> None:
    tree = DraftTree(np.arange(6), np.array([-1, 0, 0, 2, 1, 3]), np.array([0, 1, 1, 2, 2, 3]), np.zeros(6))
    assert [TRACE.path(tree, turn) for turn in range(6)] == [
        [0, 2, 3, 5],
        [0],
        [0, 2, 3, 5],
        [0, 1],
        [0, 2, 3],
        [0, 2, 3, 5],
    ]


@pytest.mark.parametrize("limits", SHAPES, ids=lambda x: f"{x.sequences}x{x.nodes}")
def test_the_kernel_forces_what_the_host_does(limits) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(2)
    for _ in range(40):
        random_round(limits, rng, trace=TRACE)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m[2].strip() or "nothing counted")
def test_planted_faults_are_found(mutation: tuple[str, str, str]) -> None:
    rng = random.Random(3)
    with pytest.raises((AssertionError, KernelError, IndexError)):
        for limits in SHAPES * 20:
            random_round(limits, rng, trace=TRACE, mutation=mutation)


def test_rounds_of_the_host() -> None:
    """Lengths in turn, from the start for each sequence, as far as the tree goes."""
    model = load(ROOT / "models" / "kimi_tiny.yaml", ["tree.budget=7"])
    d = cpu_decoder(model, folders(model, None, None), trace=TRACE)
    for _ in range(2):
        slot, _ = d.start(GOLDENS[0]["prompt_ids"], Sampling(), 60)
        done = [d.round()[slot] for _ in range(7)]
        d.end(slot)
        for turn, r in enumerate(done):
            assert r.forced and len(r.emitted) == min(TRACE.lengths[turn % 5], 1 + int(r.tree.depth.max()))
            assert r.emitted[:-1] == r.tree.token[r.path[1:]].tolist()


def test_every_output_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, log = tmp_path / "lengths.json", tmp_path / "log"
    file.write_text("[2, 1]")
    common = [
        str(ROOT / "models" / "kimi_tiny.yaml"),
        "-p",
        "def f(",
        "-n",
        "5",
        "--device",
        "cpu",
        "--accept-trace",
        str(file),
    ]
    label = f"FORCED: accepted lengths come from {file}, not from the model; its text means nothing"
    assert main([*common, "--show-tree", "--trace", str(log)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"[{label}]\n") and f"\n{label} | prompt" in err and "2 tokens (FORCED)" in err
    assert all(json.loads(line)["forced"] for line in log.read_text().splitlines())
    assert main([*common, "--json", "-q"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["accept_trace"] == label and made["accept_lengths"] == [2, 1, 2]


@pytest.mark.parametrize("text", ["", "{}", "[]", "[0]", "[1.5]", "[true]", '["4"]'])
def test_mistakes_in_the_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="expected a list of accepted lengths"):
        AcceptTrace.read(file)


def test_nothing_to_force() -> None:
    with pytest.raises(UsageError, match="cannot read"):
        AcceptTrace.read(Path("no/such/file"))
    model = load(ROOT / "models" / "kimi_tiny.yaml", draft=False)
    with pytest.raises(UsageError, match="this model has none"):
        cpu_decoder(model, folders(model, None, None), trace=TRACE)
