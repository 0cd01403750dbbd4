"""ddtree-compile: checks, explanations, drawings and compiled kernels, without a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ddtree.cli.compile import main

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def compile_(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(model: str, *args: str) -> tuple[int, str, str]:
        code = main([str(MODELS / f"{model}.yaml"), *args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize("model", ["kimi_tiny", "kimi_k26"])
def test_check(compile_: Any, model: str) -> None:
    code, out, _ = compile_(model, "--check")
    assert code == 0 and out.endswith("ranks\n") and ": ok, 4 steps" in out


def test_explain_names_bytes_and_memory(compile_: Any) -> None:
    code, out, _ = compile_("kimi_k26", "--explain", "--ctx", "4096")
    assert code == 0
    verify = out[out.index("step verify") :]
    one_row = re.search(r"^1 +([\d.]+) GB", verify, re.M)
    assert one_row and one_row[1] == "6.03"  # GB of weights per rank and row: docs/performance.md derives the same
    assert "memory of rank 0 of 8" in out


def test_explain_as_json(compile_: Any) -> None:
    _, out, _ = compile_("kimi_tiny", "--explain", "--json")
    data = json.loads(out)["explain"]
    assert [s["name"] for s in data["steps"]] == ["prefill", "draft", "verify", "commit"]
    assert 17_000_000 < data["memory"]["weights"] < 18_000_000
    assert data["steps"][2]["cost"]["8"]["bytes"] > data["steps"][2]["cost"]["1"]["bytes"]


@pytest.mark.parametrize(("suffix", "first"), [("mmd", "flowchart TD"), ("dot", "digraph ddtree {")])
def test_graph(compile_: Any, tmp_path: Path, suffix: str, first: str) -> None:
    file = tmp_path / f"g.{suffix}"
    code, _, _ = compile_("kimi_tiny", "--graph", str(file))
    text = file.read_text()
    assert code == 0 and text.startswith(first) and text.count("mla_tree_attention") == 16  # 8 layers in two steps


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--target", "sm_70"), 2, "compute_120f"),
        (("--jobs", "0"), 2, "--jobs must be at least 1"),
        (("--rank", "8"), 2, "--rank must be 0..0"),
        (("--graph", "g.png"), 2, ".mmd or .dot"),
        (("--tp", "3", "--check"), 2, "does not divide by 3 ranks"),
        (("--set", "nothing=1", "--check"), 2, "no such key"),
        (("--set", "x=1", "--check"), 2, "write more of the path"),
    ],
)
def test_a_mistake_is_one_line(compile_: Any, args: tuple[str, ...], code: int, says: str) -> None:
    got, out, err = compile_("kimi_tiny", *args)
    assert got == code and not out and len(err.splitlines()) == 1 and says in err
