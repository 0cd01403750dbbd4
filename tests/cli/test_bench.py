"""ddtree-bench without a GPU: its arguments, its errors, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree.cli.bench import main, show
from ddtree.graph.build import build_step
from ddtree.graph.cost import Load
from ddtree.graph.model import load
from ddtree.graph.passes.alone import alone, given_routing
from ddtree.graph.passes.verify import verify
from ddtree.runtime.device import gpu_problem

MODELS = Path(__file__).parents[2] / "models"
K26, TINY = str(MODELS / "kimi_k26.yaml"), str(MODELS / "kimi_tiny.yaml")


def fails(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    try:
        got = main(["step", *args])
    except SystemExit as e:  # argparse
        got = int(e.code or 0)
    err = capsys.readouterr().err
    assert got == code, err
    return err.strip().splitlines()[-1]


@pytest.mark.parametrize("rows", ["0", "65", "a", "1,,2", "-1"])
def test_row_counts(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "row counts" in fails(capsys, 2, TINY, f"--rows={rows}")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--rank", "8"], "--rank must be 0..7 for 8 ranks, found 8"),
        (["--ctx", "0"], "--ctx must be 1..262144"),
        (["--ctx", "262145"], "found 262145"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--device", "cpu"], "measured on a GPU"),
        (["--set", "decode.loop=[verify, accept, commit]", "--step", "draft"], "does not draft"),
    ],
)
def test_bad_arguments_are_one_line(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert text in fails(capsys, 2, K26, *args)


@pytest.mark.skipif(gpu_problem() is None, reason="needs a machine without a GPU")
def test_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no NVIDIA driver" in fails(capsys, 5, TINY)


def test_a_rank_alone_has_all_ops_but_collectives() -> None:
    model = load(Path(K26), [], ranks=8)
    for name in ("verify", "draft"):
        whole = build_step(model, name)  # type: ignore[arg-type]
        part = alone(whole)
        verify(part, "alone")
        local = {"all_reduce_add_rms_norm": "add_rms_norm"}
        wanted = [local.get(op.name(), op.name()) for op in whole.ops]
        assert [op.name() for op in part.ops] == [n for n in wanted if n not in ("all_reduce", "all_gather")]
        assert not any(op.collective for op in part.ops)
        assert part.cost(Load(8, 4096)).weights == whole.cost(Load(8, 4096)).weights
        assert part.cost(Load(8, 4096)).weights > 1e9


def test_given_routing_leaves_the_routers_in_place() -> None:
    graph = given_routing(alone(build_step(load(Path(K26), [], ranks=8), "verify")))
    verify(graph, "given_routing")
    chosen = [t for name, t in graph.inputs.items() if name.endswith(".given")]
    assert len(chosen) == 60 and {t.shape for t in chosen} == {(64, 8)}
    assert sum(op.name() == "route" for op in graph.ops) == 60


def test_the_table_says_what_was_left_out() -> None:
    made = {
        "device": "a GPU", "model": "m", "ranks": 8, "rank": 0, "context": 4096, "routing": "independent",
        "weight_bytes": 1, "load_seconds": 1.0, "read_bandwidth": 4e12, "steps": [],
    }  # fmt: skip
    assert "No all-reduce" in show(made)
    assert "No all-reduce" not in show(made | {"ranks": 1})
