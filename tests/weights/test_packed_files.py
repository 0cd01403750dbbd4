"""Packed files: the bytes of the streaming load again, and nothing damaged, foreign or half written is taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddtree.cli.compile import main
from ddtree.errors import UsageError, WeightsError
from ddtree.graph.build import build_step, steps_of
from ddtree.graph.model import Model, load
from ddtree.runtime import packed_files
from ddtree.runtime.delivery import HostSink
from ddtree.runtime.load import Folders, folders
from ddtree.runtime.packed_files import is_packed, load_weights, pack_checkpoint
from ddtree.runtime.stream import stream_weights

TINY = Path(__file__).parents[2] / "models" / "kimi_tiny.yaml"
FIRST = "rank-000-of-002.safetensors"


def graphs_of(model: Model) -> list[Any]:
    return [build_step(model, step) for step in steps_of(model)]


def loaded(model: Model, where: Folders, ranks: tuple[int, ...] = (0, 1), **options: Any) -> dict[int, HostSink]:
    sinks = {rank: HostSink() for rank in ranks}
    load_weights(model, where, graphs_of(model), sinks, **options)
    return sinks


@pytest.fixture(scope="module")
def model() -> Model:
    return load(TINY, ranks=2)


@pytest.fixture(scope="module")
def whole(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    pack_checkpoint(model, folders(model, None, None), graphs_of(model), folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_files, "CHUNK", 1 << 18)


@pytest.fixture(scope="module", autouse=True)
def small_from_the_start() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_files, "CHUNK", 1 << 18)
        yield


def test_the_bytes_of_the_streaming_load(model: Model, whole: Path) -> None:
    direct = {0: HostSink(), 1: HostSink()}
    stream_weights(model, folders(model, None, None), graphs_of(model), direct)
    steps: list[tuple[str, int, int]] = []
    packed = loaded(model, Folders(whole, None), progress=lambda *step: steps.append(step))
    for rank, sink in direct.items():
        assert packed[rank].arrays.keys() == sink.arrays.keys()
        assert all((packed[rank].arrays[place] == array).all() for place, array in sink.arrays.items())
    assert {what for what, _, _ in steps} == {"packed weights"} and steps[-1][1] == steps[-1][2]
    assert len(steps) > len(direct[0].arrays)  # large tensors came in several chunks


def test_one_rank_and_no_drafter(whole: Path) -> None:
    plain = load(TINY, ranks=2, draft=False)
    sink = loaded(plain, Folders(whole, None), (1,))[1]
    direct = HostSink()
    stream_weights(plain, folders(plain, None, None), graphs_of(plain), {1: direct})
    assert all((sink.arrays[place] == array).all() for place, array in direct.arrays.items())
    assert not any(place.name.startswith("draft.") for place in sink.arrays)


def test_only_a_folder_of_packed_files_is_one(whole: Path) -> None:
    assert is_packed(whole) and not is_packed(TINY.parent / "kimi_tiny")
    assert {f.name for f in whole.iterdir()} == {FIRST, FIRST.replace("000", "001", 1), "config.json", "tiktoken.model"}


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def edit(file: Path, key: str, value: str) -> None:
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    table = json.loads(raw[8 : 8 + length])
    table["__metadata__"][key] = value
    header = json.dumps(table).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])


def test_a_flipped_bit_is_found(model: Model, folder: Path) -> None:
    flip(folder / FIRST, -1000)
    with pytest.raises(
        WeightsError, match=rf"{FIRST}: tensor '.*': expected the checksum [0-9a-f]{{8}} of bytes \d+\.\.\d+, found"
    ):
        loaded(model, Folders(folder, None))


def test_files_that_do_not_fit(model: Model, folder: Path) -> None:
    edit(folder / FIRST, "layouts", "{}")
    with pytest.raises(
        WeightsError, match=f"{FIRST}: packed for other kernels than those that read .* pack the checkpoint again"
    ):
        loaded(model, Folders(folder, None))
    edit(folder / FIRST, "format", "ddtree-packed/0")
    with pytest.raises(WeightsError, match="expected a packed file of format ddtree-packed/1"):
        loaded(model, Folders(folder, None))
    (folder / FIRST).unlink()
    with pytest.raises(WeightsError, match=f"{FIRST}: expected a safetensors file, found none"):
        loaded(model, Folders(folder, None))


def test_damaged_metadata(model: Model, folder: Path) -> None:
    for key, value in (("sums", "00 11"), ("sums", "x"), ("aliases", "{"), ("layouts", "[]")):
        shutil.copyfile(folder / FIRST, folder / "kept")
        edit(folder / FIRST, key, value)
        with pytest.raises(WeightsError, match="its metadata is damaged"):
            loaded(model, Folders(folder, None))
        (folder / "kept").replace(folder / FIRST)


def test_other_layouts_have_other_digests(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    uses = packed_files.uses_of(graphs_of(model))
    before = packed_files.layout_digests(uses)
    assert packed_files.layout_digests(uses) == before and len(before) > 10
    pack = packed_files.Use.pack
    monkeypatch.setattr(packed_files.Use, "pack", lambda self, a: {p: np.roll(x, 1) for p, x in pack(self, a).items()})
    after = packed_files.layout_digests(uses)
    assert after.keys() == before.keys() and all(after[key] != before[key] for key in before)


def test_nothing_is_left_of_a_failure(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise WeightsError("damaged")

    monkeypatch.setattr(packed_files, "stream_weights", fail)
    with pytest.raises(WeightsError, match="damaged"):
        pack_checkpoint(model, folders(model, None, None), graphs_of(model), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_known_before(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UsageError, match=r"2 packed ranks take \d+\.\d+ MB, the disk has 1\.00 kB left"):
        pack_checkpoint(model, folders(model, None, None), graphs_of(model), tmp_path)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(TINY), "--pack", str(tmp_path / "out"), "--tp", "2"]) == 0
    out, _ = capsys.readouterr()
    assert "2 packed files" in out and is_packed(tmp_path / "out")
    code = main([str(TINY), "--pack", str(tmp_path / "no"), "--weights", str(tmp_path / "nothing"), "-q"])
    out, err = capsys.readouterr()
    assert code == 4 and not out and len(err.splitlines()) == 1 and "there is no folder" in err


def test_a_graph_with_other_ops_needs_its_own_files(whole: Path) -> None:
    other = load(TINY, ["passes.add_rms_norm=false"], ranks=2)
    with pytest.raises(
        WeightsError, match=r"expected 512 bytes of '.*/rms_norm\.weight/', found none; pack the checkpoint"
    ):
        loaded(other, Folders(whole, None))
