"""Every kernel of the published model, compiled for both targets without a GPU: machine code, registers, memory, time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddtree.graph.model import load
from ddtree.templates.target import SHARED_LIMIT

ROOT = Path(__file__).parents[2]
COLD_SECONDS, WARM_SECONDS = 120.0, 4.0  # room for slow and busy machines; docs/performance.md has what was measured


def compile_(cache: Path, *args: str) -> tuple[dict[str, Any], float]:
    """Run the command in a process of its own; its JSON and the seconds of the whole process."""
    env = {**os.environ, "DDTREE_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ddtree.cli.compile", str(ROOT / "models" / "kimi_k26.yaml"), "--json", *args]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    seconds = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), seconds


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float, Path, Path]:
    folder = tmp_path_factory.mktemp("kernels")
    report, seconds = compile_(
        folder / "cache", "--target", "compute_120f", "--target", "sm_90a", "--out", str(folder / "out")
    )
    return report, seconds, folder / "cache", folder / "out"


def test_every_cubin_is_sound(cold: tuple[dict[str, Any], float, Path, Path]) -> None:
    report, _, _, out = cold
    assert report["model"] == "kimi-k2.6" and report["target"] == ["compute_120f", "sm_90a"]
    names = {(k["name"], k["target"]) for k in report["kernels"]}
    assert len(names) == len(report["kernels"]) > 100
    for k in report["kernels"]:
        assert k["spill_bytes"] == 0 and k["smem_bytes"] <= SHARED_LIMIT and not k["cached"]
        code = (out / k["target"] / f"{k['name']}.cubin").read_bytes()
        assert code[:4] == b"\x7fELF" and len(code) == k["cubin_bytes"] and b"__cuda_syscall" not in code


def test_both_targets_have_every_op(cold: tuple[dict[str, Any], float, Path, Path]) -> None:
    report, *_ = cold
    ops = {t: {k["op"] for k in report["kernels"] if k["target"] == t} for t in report["target"]}
    assert ops["compute_120f"] == ops["sm_90a"]
    assert {"linear", "mla_tree_attention", "expert_mlp", "draft_attention", "build_tree", "all_reduce"} <= ops[
        "sm_90a"
    ]


def test_cold_and_warm_time(cold: tuple[dict[str, Any], float, Path, Path]) -> None:
    report, seconds, cache, _ = cold
    warm = [compile_(cache, "--target", "compute_120f", "--target", "sm_90a") for _ in range(3)]
    assert all(k["cached"] for k in warm[0][0]["kernels"]) and len(warm[0][0]["kernels"]) == len(report["kernels"])
    assert seconds < COLD_SECONDS, f"cold {seconds:.1f} s"
    assert min(s for _, s in warm) < WARM_SECONDS, f"warm {[round(s, 2) for _, s in warm]}"


def test_yaml_ranks_decide_the_shapes() -> None:
    assert load(ROOT / "models" / "kimi_k26.yaml").ranks == 8
