"""ddtree-run as people call it: what it prints where, and what mistakes cost."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.cli.run import main

ROOT = Path(__file__).parents[2]
YAML = str(ROOT / "models" / "kimi_tiny.yaml")
GOLDENS = json.loads((ROOT / "tests" / "data" / "kimi_tiny_greedy.json").read_text())
FIB = GOLDENS[0]["prompt"]
CPU = ("--device", "cpu")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*args: str) -> tuple[int, str, str]:
        code = main([YAML, *CPU, *args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_text_on_stdout_and_statistics_on_stderr(run: Any) -> None:
    code, out, err = run("-p", FIB, "-n", "24")
    assert code == 0
    assert out.rstrip("\n") == GOLDENS[0]["greedy_text"][: len(out.rstrip("\n"))] and len(out) > 20
    assert "tok/round (budget 15, depth 7)" in err and len(err.strip().splitlines()) == 1


def test_quiet_prints_nothing_but_text(run: Any) -> None:
    code, out, err = run("-p", FIB, "-n", "8", "-q")
    assert code == 0 and out and not err


def test_json_contract(run: Any) -> None:
    code, out, _ = run("-p", FIB, "-n", "40", "--json")
    result = json.loads(out)
    assert code == 0
    assert list(result) == ["prompt_ids", "output_ids", "text", "finish_reason", "rounds", "accept_lengths", "stats"]
    assert result["prompt_ids"] == GOLDENS[0]["prompt_ids"]
    assert result["output_ids"] == GOLDENS[0]["greedy_ids"][:40]
    assert result["finish_reason"] == "length"
    golden = GOLDENS[0]["accept"]["tree15"]["lengths"]
    assert result["rounds"] == len(result["accept_lengths"])
    assert result["accept_lengths"] == golden[: result["rounds"]]
    assert 1 + sum(result["accept_lengths"]) >= 40  # not clipped by -n


def test_no_spec_has_no_rounds(run: Any) -> None:
    _, out, _ = run("-p", FIB, "-n", "16", "--json", "--no-spec")
    result = json.loads(out)
    assert (result["rounds"], result["accept_lengths"]) == (0, [])
    assert result["output_ids"] == GOLDENS[0]["greedy_ids"][:16]


@pytest.mark.parametrize(
    "setting", ["tree.budget=3", "decode.tree.budget=31", "block_size=3", "tree.width=1", "tree.budget=0"]
)
def test_another_tree_gives_the_same_text(run: Any, setting: str) -> None:
    _, out, err = run("-p", FIB, "-n", "16", "--json", "--set", setting)
    assert json.loads(out)["output_ids"] == GOLDENS[0]["greedy_ids"][:16]
    assert "overrides" in err and "kimi_tiny.yaml:" in err


def test_a_seed_gives_the_same_text_with_and_without_the_tree(run: Any) -> None:
    options = ("-p", FIB, "-n", "24", "--json", "--temp", "0.8", "--top-p", "0.9", "--top-k", "40", "--seed", "5")
    one, two = json.loads(run(*options)[1]), json.loads(run(*options, "--no-spec")[1])
    other = json.loads(run(*options[:-1], "6")[1])
    assert one["output_ids"] == two["output_ids"] != other["output_ids"]


def test_stop_string_ends_the_text_before_it(run: Any) -> None:
    whole = json.loads(run("-p", FIB, "-n", "24", "--json")[1])["text"]
    stop = whole[12:15]
    result = json.loads(run("-p", FIB, "-n", "24", "--json", "--stop", stop)[1])
    assert result["text"] == whole[: whole.index(stop)] and result["finish_reason"] == "stop"


def test_prompt_from_file_and_stdin(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(FIB)
    monkeypatch.setattr(sys, "stdin", io.StringIO(FIB))
    from_file, from_stdin = run("-f", str(file), "-n", "8", "-q")[1], run("-n", "8", "-q")[1]
    assert from_file == from_stdin == run("-p", FIB, "-n", "8", "-q")[1]


def test_chat_answers_every_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\nand again\n"))
    code, _, err = run("--chat", "-n", "4")
    assert code == 0 and len(err.strip().splitlines()) == 2


def test_show_tree_and_trace(run: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    code, out, err = run("-p", FIB, "-n", "24", "--show-tree", "--trace", str(trace), "--json")
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    result = json.loads(out)
    assert code == 0 and len(rounds) == result["rounds"] and err.count("rows, ") == result["rounds"]
    golden = GOLDENS[0]["rounds_tree15"][0]
    assert rounds[0]["position"] == golden["start"]
    assert rounds[0]["tokens"] == golden["tokens"] and rounds[0]["parents"] == golden["parent"]
    assert rounds[0]["path"] == golden["path"] and rounds[0]["emitted"][-1] == golden["bonus"]
    assert sum(len(r["emitted"]) for r in rounds) + 1 >= 24


COSTS = "costs: {cpu: {verify: {1: 2.0, 8: 4.0, 64: 16.0}, draft: 0.5}}"


def test_budget_auto_says_which_size_and_why(run: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    auto = ("--set", f"tree={{budget: auto, {COSTS}}}", "--show-tree", "--trace", str(trace), "--json")
    code, out, err = run("-p", GOLDENS[1]["prompt"], "-n", "60", *auto)
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    assert code == 0 and json.loads(out)["output_ids"] == GOLDENS[1]["greedy_ids"][:60]
    for r in rounds:
        why = r["choice"]
        assert why["rows"] == len(r["tokens"]) and why["plain_milliseconds"] == 2.0
        assert why["milliseconds"] == 2.0 if not why["draft"] else why["milliseconds"] >= 2.5
        assert len(why["calibration"]["0"]) == 7 if why["draft"] else why["expected_tokens"] == 1
    drafts = sum(r["choice"]["draft"] for r in rounds)
    assert 0 < drafts < len(rounds)
    assert err.count("tokens expected for") == len(rounds) and err.count("no draft: ") == len(rounds) - drafts
    assert err.count("probabilities by depth times") == drafts and "(budget auto, " in err


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("-p", ""), 2, "the prompt is empty"),
        (("-p", "x", "-n", "0"), 2, "at least 1"),
        (("-p", "x", "-n", "-3"), 2, "at least 1"),
        (("-p", "x", "-n", "5000"), 2, "exceed the context of 4096"),
        (("-p", "x " * 5000), 2, "exceed the context of 4096"),
        (("-p", "x", "--temp", "-1"), 2, "temperature"),
        (("-p", "x", "--temp", "nan"), 2, "temperature"),
        (("-p", "x", "--top-p", "0"), 2, "top-p"),
        (("-p", "x", "--top-k", "-1"), 2, "top-k"),
        (("-p", "x", "--seed", "-1"), 2, "seed"),
        (("-p", "x", "--stop", ""), 2, "stop string is empty"),
        (("-p", "x", "--set", "tree.budgt=3"), 2, "did you mean 'decode.tree.budget'"),
        (("-p", "x", "--set", "tree.budget=99"), 2, "63"),
        (("-p", "x", "--set", "tree.budget=many"), 2, "tree.budget"),
        (("-p", "x", "--set", "block_size=1"), 2, "block_size"),
        (("-p", "x", "--set", "block_size=9"), 2, "at most 8"),
        (("-p", "x", "--set", "nonsense"), 2, "KEY=VALUE"),
        (("-p", "x", "--tp", "3"), 2, "does not divide by 3 ranks"),
        (("-p", "x", "--tp", "0"), 2, "tensor"),
        (("-p", "x", "--tp", "8", "--no-spec"), 2, "not a multiple of the quantisation group 32"),
        (("-f", "/no/such/file"), 2, "cannot read /no/such/file"),
        (("-p", "x", "--weights", "/no/such/folder"), 4, "/no/such/folder"),
        (("-p", "x", "--draft-weights", "/no/such/folder"), 4, "/no/such/folder"),
        (("-p", "x", "--trace", "/no/such/folder/t"), 2, "cannot write"),
        (("-p", "x", "--device", "tpu"), 2, "auto, cpu, cuda"),
        (("--chat", "--json"), 2, "--chat"),
    ],
    ids=lambda v: " ".join(v)[:40] if isinstance(v, tuple) else None,
)
def test_a_mistake_is_one_line(run: Any, args: tuple[str, ...], code: int, says: str) -> None:
    got, out, err = run(*args)
    assert got == code and not out
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("ddtree-run: error: ") and says in lines[0]


def test_no_gpu_is_said(run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtree.runtime.device.gpu_problem", lambda: "the driver finds no GPU")
    code = main([YAML, "-p", "x", "--device", "cuda:1"])
    err = capsys.readouterr().err
    assert code == 5 and err == "ddtree-run: error: --device cuda:1: the driver finds no GPU; use --device cpu\n"
    assert main([YAML, "-p", "x", "-n", "1", "-q"]) == 0  # auto falls back to the CPU


def test_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no_such_model", "-p", "x"]) == 2
    assert "kimi_tiny" in capsys.readouterr().err


def test_wrong_option_exits_with_2() -> None:
    with pytest.raises(SystemExit) as e:
        main([YAML, "--prompt-file", "x"])
    assert e.value.code == 2


def test_a_drafter_with_another_config_names_the_line(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "draft"
    shutil.copytree(ROOT / "models" / "kimi_tiny_dflash", folder)
    config = json.loads((folder / "config.json").read_text())
    config["layer_types"][0] = "full_attention"
    (folder / "config.json").write_text(json.dumps(config))
    code, _, err = run("-p", "x", "--draft-weights", str(folder))
    assert code == 4 and "dflash_tiny.yaml:" in err and "layer_types" in err


def test_nan_weights_never_become_text(run: Any, tmp_path: Path) -> None:
    """A NaN in the embedding row of the prompt's token reaches the logits."""
    folder = tmp_path / "weights"
    shutil.copytree(ROOT / "models" / "kimi_tiny", folder)
    shard = folder / "model-00002-of-000002.safetensors"
    name = "language_model.lm_head.weight"
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    shard = folder / index[name]
    size = int.from_bytes(shard.read_bytes()[:8], "little")
    begin, _ = json.loads(shard.read_bytes()[8 : 8 + size])[name]["data_offsets"]
    with shard.open("r+b") as f:
        f.seek(8 + size + begin)
        f.write(np.array([np.nan], np.float32).view(np.uint16)[1:].tobytes())
    code, out, err = run("-p", "x", "--weights", str(folder))
    assert code in (4, 5) and not out.strip() and ("NaN" in err or "nan" in err)


def test_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The module runs as a program; a reader that leaves early ends it quietly."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ddtree.cli.run", YAML, *CPU, "-p", FIB, "-n", "64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path) as p:
        assert p.stdout is not None and p.stderr is not None
        assert p.stdout.read(5)
        p.stdout.close()
        errors = p.stderr.read().decode()
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("rope.main.theta=10000", "rope_theta"),
        ("rope.main.factor=8", "rope_scaling.factor"),
        ("constants.route_scale=3.0", "routed_scaling_factor"),
    ],
)
def test_the_engines_own_values_are_compared_with_the_checkpoint(run: Any, setting: str, key: str) -> None:
    code, _, err = run("-p", "x", "--set", setting)
    assert code == 4 and key in err and "kimi_tiny.yaml:" in err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("layers: [1, 3, 5]", "layers: [0, 2, 6]"),
        ("block_size: 8 ", "block_size: 16 "),
        ("mask_id: 4094", "mask_id: 4093"),
        ("theta: 50000", "theta: 10000"),
    ],
)
def test_a_drafter_that_is_not_the_checkpoints_names_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str
) -> None:
    """The line named is the value's own, which is the one to change."""
    for name in ("kimi_tiny", "dflash_tiny"):
        text = (
            (ROOT / "models" / f"{name}.yaml")
            .read_text()
            .replace("weights: kimi_tiny", f"weights: {ROOT}/models/kimi_tiny")
        )
        (tmp_path / f"{name}.yaml").write_text(text.replace(old, new) if name == "dflash_tiny" else text)
    (tmp_path / "kimi_chat.jinja").write_text((ROOT / "models" / "kimi_chat.jinja").read_text())
    line = next(
        i for i, t in enumerate((tmp_path / "dflash_tiny.yaml").read_text().splitlines(), 1) if new.strip() in t
    )
    assert main([str(tmp_path / "kimi_tiny.yaml"), "--device", "cpu", "-p", "x", "-n", "2"]) == 4
    assert f"dflash_tiny.yaml:{line}:" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["stdin", "file"])
def test_a_prompt_that_is_not_utf8(run: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bad.txt"
    file.write_bytes(b"def \xff f")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"def \xff f"), encoding="utf-8", errors="replace"))
    code, _, err = run("-n", "3", *(("-f", str(file)) if what == "file" else ()))
    assert code == 2 and "not UTF-8 text (byte 4)" in err


def test_a_full_disk_and_a_closed_input_are_said(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run("-p", "x", "-n", "3", "--trace", "/dev/full")
    assert code == 2 and "No space left" in err and len(err.splitlines()) == 1
    monkeypatch.setattr(sys, "stdin", None)
    code, _, err = run("-n", "3")
    assert code == 2 and "standard input is closed" in err
