"""Every fault of a checkpoint is one line that names the file, from the command and from the streaming load alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.cli.run import main
from ddtree.errors import WeightsError
from ddtree.graph.build import build_step, steps_of
from ddtree.graph.model import load
from ddtree.runtime import stream
from ddtree.runtime.delivery import HostSink
from ddtree.runtime.load import folders
from ddtree.runtime.stream import stream_weights
from ddtree.runtime.weights.files import OpenFiles
from tools.make_checkpoint import make

TINY = Path(__file__).parents[2] / "models" / "kimi_tiny.yaml"
INDEX, SECOND = "model.safetensors.index.json", "model-00002-of-000004.safetensors"
EXPERT = "language_model.model.layers.1.mlp.experts.3.up_proj.weight"
NORM = "language_model.model.layers.1.input_layernorm.weight"
SETTINGS = ("experts=8", "tree.budget=3")
Table = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    make(TINY, folder, layers=3, settings=SETTINGS)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def header_of(file: Path) -> tuple[Table, bytes]:
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def rewrite(file: Path, change: Callable[[Table, bytearray], None]) -> None:
    """Change a file's header table or its data."""
    table, data = header_of(file)
    changed = bytearray(data)
    change(table, changed)
    raw = json.dumps(table).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + changed)


def put(name: str, at: int, values: np.ndarray) -> Callable[[Path], None]:
    """Overwrite bytes of a tensor of the second shard."""

    def change(table: Table, data: bytearray) -> None:
        begin = table[name]["data_offsets"][0] + at
        data[begin : begin + values.nbytes] = values.tobytes()

    return lambda folder: rewrite(folder / SECOND, change)


def edit(name: str, **new: Any) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder / SECOND, lambda table, _: table[name].update(new))


def rename(old: str, new: str) -> Callable[[Path], None]:
    def change(table: Table, _: bytearray) -> None:
        table[new] = table.pop(old)

    return lambda folder: rewrite(folder / SECOND, change)


def reshape(folder: Path) -> None:
    """The shard of a model of other sizes: the same names and bytes."""

    def change(table: Table, _: bytearray) -> None:
        shape = table[f"{EXPERT}_packed"]["shape"]
        table[f"{EXPERT}_packed"]["shape"] = [shape[1], shape[0]]

    rewrite(folder / SECOND, change)


def truncate(nbytes: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / SECOND
        file.write_bytes(file.read_bytes()[:-nbytes] if nbytes else b"")

    return change


def index(change: Callable[[Table], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        table = json.loads((folder / INDEX).read_text())
        change(table)
        (folder / INDEX).write_text(json.dumps(table))

    return apply


def missing(folder: Path) -> None:
    """A tensor that index and shard name otherwise than the YAML."""
    other = NORM.replace("input_", "in_")
    rename(NORM, other)(folder)
    index(lambda table: table["weight_map"].update({other: table["weight_map"].pop(NORM)}))(folder)


def extra(folder: Path) -> None:
    """A tensor that no weight of the YAML wants."""

    def change(table: Table, data: bytearray) -> None:
        table["language_model.q"] = {"dtype": "BF16", "shape": [4], "data_offsets": [len(data), len(data) + 8]}
        data.extend(bytes(8))

    rewrite(folder / SECOND, change)
    index(lambda table: table["weight_map"].update({"language_model.q": SECOND}))(folder)


def config(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"hidden_size": 256', '"hidden_size": 512'))


NAN, INF = np.array([0x7FC0], np.uint16), np.array([0x7F80], np.uint16)
FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (lambda f: shutil.rmtree(f), "there is no folder"),
    "no index": (lambda f: (f / INDEX).unlink(), "expected model.safetensors.index.json or model.safetensors"),
    "index without map": (index(lambda t: t.pop("weight_map")), "expected weight_map"),
    "index leads outside": (index(lambda t: t["weight_map"].update({NORM: "../x"})), "inside the folder, found '../x'"),
    "shard missing": (lambda f: (f / SECOND).unlink(), f"shard '{SECOND}' is missing; complete the download"),
    "shard of another revision": (rename(NORM, NORM.replace("input_", "in_")), f"'{NORM}' is in the index but not in the shard"),
    "tensor missing": (missing, f"tensor '{NORM}' of weight"),
    "tensor extra": (extra, "tensor 'language_model.q' (BF16 [4]) belongs to no weight of the YAML"),
    "shard of another model": (reshape, f"tensor '{EXPERT}_packed': expected I32"),
    "dtype of another model": (edit(NORM, dtype="F16"), f"tensor '{NORM}': expected BF16"),
    "unknown dtype": (edit(NORM, dtype="Q4"), f"tensor '{NORM}': expected a dtype of"),
    "offsets overlap": (edit(NORM, data_offsets=[0, 512]), "overlaps the tensor before it"),
    "truncated": (truncate(100), "the file is truncated"),
    "empty": (truncate(0), "expected a safetensors file, found 0 bytes"),
    "pointer": (lambda f: (f / SECOND).write_text("version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer"),
    "config": (config, "gives text_config.hidden_size = 256, found 512"),
    "shape disagrees": (put(f"{EXPERT}_shape", 4, np.array([128], np.int32)), "expected the values [128, 256] of weight"),
    "scale NaN": (put(f"{EXPERT}_scale", 2 * 9, NAN), f"tensor '{EXPERT}_scale': expected finite scales, found nan at [1, 1]"),
    "scale Inf": (put(f"{EXPERT}_scale", 0, INF), f"tensor '{EXPERT}_scale': expected finite scales, found inf at [0, 0]"),
    "norm Inf": (put(NORM, 2 * 7, INF), f"tensor '{NORM}': expected finite values, found inf at [7]"),
    "bias NaN": (
        put("language_model.model.layers.1.mlp.gate.e_score_correction_bias", 4, np.array([np.nan], np.float32)),
        "e_score_correction_bias': expected finite values, found nan at [1]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_command_says_it_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    damage, says = FAULTS[fault]
    shutil.copyfile(folder / "target" / "tiktoken.model", folder / "tiktoken.model")
    damage(folder / "target")
    if fault == "no folder":  # the tokenizer's file lies in it and is missed first
        (folder / "target").mkdir()
        shutil.copyfile(folder / "tiktoken.model", folder / "target" / "tiktoken.model")
        says = "config.json: cannot read it"
    code = main([str(folder / "target.yaml"), "-p", "x", "-n", "1", "--device", "cpu", "-q"])
    out, err = capsys.readouterr()
    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 1 and says in err and "target" in err


def stream_in(folder: Path, **options: Any) -> HostSink:
    model = load(folder / "target.yaml")
    sink = HostSink()
    graphs = [build_step(model, step) for step in steps_of(model)]
    stream_weights(model, folders(model, None, None), graphs, {0: sink}, **options)
    return sink


@pytest.mark.parametrize("fault", FAULTS)
def test_streaming_load_says_the_same(folder: Path, fault: str) -> None:
    damage, says = FAULTS[fault]
    damage(folder / "target")
    with pytest.raises(WeightsError) as caught:
        stream_in(folder)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_damaged_value_says_how_far_loading_came(folder: Path) -> None:
    put(f"{EXPERT}_scale", 0, INF)(folder / "target")
    with pytest.raises(WeightsError, match=r"\(0\.\d+ of 0\.\d+ GB before it were read without a fault\)"):
        stream_in(folder)


def test_the_drafter_is_checked_before_the_target_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenFiles, "read", lambda *_: pytest.fail("read data"))
    file = folder / "drafter" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(WeightsError, match=r"drafter/model\.safetensors: tensor '.*': expected .* truncated"):
        stream_in(folder)


LATE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "vanished": (lambda f: f.unlink(), "cannot open it to read tensor '.*': No such file or directory"),
    "replaced": (
        lambda f: f.write_bytes(b"x" + f.read_bytes()),
        r"the file changed after its header was checked \(\d+ bytes",
    ),
    "touched": (lambda f: f.write_bytes(f.read_bytes()), "the file changed after its header was checked"),
}


@pytest.mark.parametrize("fault", LATE)
def test_files_that_change_after_the_check(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    damage, says = LATE[fault]
    monkeypatch.setattr(stream, "destinations", lambda _: [damage(folder / "target" / SECOND)][:0])
    with pytest.raises(WeightsError, match=rf"{SECOND}: {says}"):
        stream_in(folder)


def test_a_file_that_shrinks_under_the_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OpenFiles.__enter__

    def shrink(self: OpenFiles) -> OpenFiles:
        file = folder / "target" / SECOND
        with file.open("r+b") as f:
            f.truncate(file.stat().st_size - 1000)
        return opened(self)

    monkeypatch.setattr(OpenFiles, "__enter__", shrink)
    with pytest.raises(
        WeightsError, match=rf"{SECOND}: tensor '.*': expected .* found .*: the file was truncated while"
    ):
        stream_in(folder)


def test_wide_shapes_are_accepted(whole: Path, tmp_path: Path) -> None:
    make(TINY, tmp_path, layers=3, settings=SETTINGS, shape_dtype="I64")
    assert header_of(tmp_path / "target" / SECOND)[0][f"{EXPERT}_shape"]["dtype"] == "I64"
    first, second = stream_in(whole), stream_in(tmp_path)
    assert all((second.arrays[place] == array).all() for place, array in first.arrays.items())


def test_the_published_layout_with_and_without_its_other_towers(tmp_path: Path) -> None:
    sizes = {"vocab": 128, "hidden": 64, "heads": 8, "q_lora": 48, "kv_lora": 32, "nope": 16, "rope": 16, "value": 16,
             "dense_width": 256, "experts": 8, "expert_width": 256, "shared_width": 256, "tree.budget": 3}  # fmt: skip
    drafter = ("dims.heads=8", "dims.kv_heads=8", "dims.head=16", "dims.width=256")
    settings = [f"{key if '.' in key else 'dims.' + key}={value}" for key, value in sizes.items()]
    make(TINY.parent / "kimi_k26.yaml", tmp_path, layers=4, settings=settings, draft_settings=drafter)
    shards = sorted((tmp_path / "target").glob("model-*.safetensors"))
    assert [s.name for s in (shards[0], shards[-1])] == [
        "model-00001-of-000007.safetensors",
        "model-00007-of-000007.safetensors",
    ]
    assert len(header_of(shards[-1])[0]) - 1 == 329 and len(header_of(shards[-2])[0]) - 1 == 6
    model = load(tmp_path / "target.yaml")
    assert model.ranks == 8
    before = stream_in(tmp_path)
    for tower in shards[-2:]:
        tower.unlink()
    after = stream_in(tmp_path)
    assert all((after.arrays[place] == array).all() for place, array in before.arrays.items())
