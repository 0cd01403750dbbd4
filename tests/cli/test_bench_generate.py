"""ddtree-bench generate on the CPU: every way to decode is measured, and what cannot be measured is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddtree.cli.bench import main
from ddtree.cli.bench_generate import PHASES, Case, Run, summary
from ddtree.graph.budget import Choice
from ddtree.graph.ops.build_tree import DraftTree
from ddtree.runtime.decoder import Round
from tests.runtime.decoders import GOLDENS, ROOT

TINY = str(ROOT / "models" / "kimi_tiny.yaml")
COSTS = "tree={budget: auto, width: auto, costs: {cpu: {verify: {1: 2.1, 8: 4.6, 64: 15.5}, draft: 0.5}}}"


def generate(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    common = [TINY, "--device", "cpu", "--repeat", "1", "--budgets", "3", "--set", COSTS, "-q"]
    assert main(["generate", *common, *args]) == 0
    return capsys.readouterr().out


def test_every_case_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps([GOLDENS[0]["prompt_ids"], {"prompt": "def f("}]))
    made = json.loads(generate(capsys, "--tokens", "12", "--prompts", str(file), "--json"))
    rows: dict[str, dict[str, Any]] = {r["case"]: r for r in made["rows"]}
    assert list(rows) == ["no-spec", "chain", "tree 3", "auto"]
    assert (
        rows["no-spec"]["rounds"] == 2 * 11 and rows["no-spec"]["accept_length"] == 1 and rows["no-spec"]["drafts"] == 0
    )
    assert rows["chain"]["rows"] == 8 and rows["tree 3"]["rows"] == 4 and 1 <= rows["auto"]["rows"] <= 64
    assert rows["tree 3"]["accept_length"] > 1 and rows["tree 3"]["drafts"] == 1
    for r in made["rows"]:
        assert r["tokens_per_second"] > 0 and 0 < sum(r["phases_us"].values()) <= r["wall_us"]
        assert r["host_us"] is None and r["idle_share"] is None
    assert made["costs"]["draft"] == 0.5 and made["prompts"] == 2 and made["accept_trace"] is None


def test_the_table_says_that_lengths_are_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lengths.json"
    file.write_text("[2]")
    lines = generate(capsys, "--tokens", "5", "--accept-trace", str(file)).splitlines()
    assert lines[0] == f"**FORCED: accepted lengths come from {file}, not from the model; its text means nothing**"
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")] == [
        "decoding",
        "chain",
        "tree 3",
        "auto",
    ]
    assert next(line for line in lines if line.startswith("| tree 3")).split("|")[3].strip() == "2.00"


def test_a_gpu_row() -> None:
    """Idle time counts between rounds of a run, not before its first; rates are medians."""

    def done(tokens: int, idle: float, *, draft: bool) -> Round:
        choice = Choice(draft, False, {0: 0}, 1, 1.0, 1.0, 1.0, 0.0)
        tree = DraftTree(*[[0] * (3 if draft else 1)] * 4)  # type: ignore[list-item]
        return Round(tree, [0], [1] * tokens, {"draft": 1e-4, "verify": 2e-4, "commit": 1e-4, "host": idle}, choice)

    first = Run(3, 0.003, 2e-5, [done(2, 5.0, draft=True), done(1, 1e-4, draft=False)])
    runs = [first, Run(3, 0.001, 0.0, first.rounds), Run(3, 0.002, 4e-5, first.rounds)]
    row = summary(Case("auto"), 1.0, runs, gpu=True)
    assert (row.rounds, row.accept_length, row.rows, row.drafts) == (6, 1.5, 2.0, 0.5)
    assert row.tokens_per_second == pytest.approx(1500) and row.wall_us == pytest.approx(1000)
    assert row.host_us == pytest.approx(10) and row.idle_share == pytest.approx(1e-4 / 9e-4)
    assert (
        row.phases_us == pytest.approx({"draft": 100, "verify": 200, "commit": 100}) and tuple(row.phases_us) == PHASES
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--tokens", "1"], "--tokens must be at least 2"),
        (["--budgets", "0"], "tree sizes must be 1..63, found 0"),
        (["--budgets", "a"], "expected tree sizes such as 4,7,15, found 'a'"),
        (["--prompts", "no/such/file"], "cannot read no/such/file"),
        (["--prompts", TINY], "cannot read"),
        (["--set", "decode.loop=[verify, accept, commit]"], "nothing to compare"),
    ],
)
def test_mistakes(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["generate", TINY, "--device", "cpu", *args])
    except SystemExit as e:  # argparse
        code = int(e.code or 0)
    assert code == 2 and text in capsys.readouterr().err
