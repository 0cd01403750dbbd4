"""Folders of shards: index, files and YAML must agree, and every disagreement is one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ddtree.errors import SpecError, WeightsError
from ddtree.graph.tensor import DType, Shard, Weight
from ddtree.runtime.weights import Checkpoint, load
from tests.weights.build import bf16, int4_tensors, write, write_index, write_sharded

PREFIX = "text."
INDEX = "model.safetensors.index.json"


def tensors() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Two shards: a norm with a stack of two INT4 experts, and a head, a bias and a tensor of another tower."""
    rng = np.random.default_rng(0)
    first = {"text.norm.weight": bf16(rng.normal(size=8))}
    for expert in range(2):
        first |= int4_tensors(f"text.experts.{expert}.up.weight", rng, 4, 64)
    second = {
        "text.head.weight": bf16(rng.normal(size=(6, 8))),
        "text.bias": rng.normal(size=6).astype(np.float32),
        "vision.patch": np.zeros((2, 2), np.float16),
    }
    return first, second


WEIGHTS = [
    Weight("norm", "norm.weight", (8,)),
    Weight("up", "experts.{expert}.up.weight", (4, 64), DType.INT4, count=2),
    Weight("head", "head.weight", (6, 8)),
    Weight("bias", "bias", (6,), DType.FP32),
]


def refuse(folder: Path, message: str, weights: list[Weight] = WEIGHTS, ignore: tuple[str, ...] = ("vision.*",)) -> str:
    with pytest.raises(WeightsError, match=message) as caught:
        Checkpoint.open(folder, prefix=PREFIX, ignore=ignore).check(weights)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sharded(tmp_path, *tensors())
    return tmp_path


def test_sound_checkpoint(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder, prefix=PREFIX, ignore=["vision.*"])
    reads = checkpoint.check(WEIGHTS)
    assert len(reads) == 1 + 2 * 3 + 1 + 1
    first, second = tensors()
    for name, want in (first | second).items():
        found = checkpoint.view(checkpoint.entries[name])
        assert not found.flags.writeable
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)
    assert checkpoint.tensor("norm.weight").dtype == ml_dtypes.bfloat16
    with pytest.raises(WeightsError, match=r"no tensor 'text.norms.weight', nearest is 'text.norm.weight'"):
        checkpoint.tensor("norms.weight")


def test_check_reads_no_tensor_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoint, "_map", lambda *_: pytest.fail("mapped a file"))
    Checkpoint.open(folder, prefix=PREFIX, ignore=["vision.*"]).check(WEIGHTS)


def test_single_file_and_its_absence(tmp_path: Path) -> None:
    refuse(tmp_path, f"expected {INDEX} or model.safetensors, found neither")
    refuse(tmp_path / "none", "expected a folder")
    first, second = tensors()
    write(tmp_path / "model.safetensors", first | second)
    assert Checkpoint.open(tmp_path, prefix=PREFIX, ignore=["vision.*"]).check(WEIGHTS)


@pytest.mark.parametrize("rule", ["vision.*", "re:vision\\..*", "*patch"])
def test_ignore_rules_match_whole_names(folder: Path, rule: str) -> None:
    Checkpoint.open(folder, prefix=PREFIX, ignore=[rule]).check(WEIGHTS)


@pytest.mark.parametrize("rule", ["vision", "re:vision", "patch", "*.norm"])
def test_ignore_rules_that_match_a_part_only(folder: Path, rule: str) -> None:
    refuse(folder, r"tensor 'vision.patch' \(F16 \[2, 2\]\) belongs to no weight of the YAML", ignore=(rule,))


def test_broken_ignore_rule(folder: Path) -> None:
    with pytest.raises(SpecError, match=r"'re:\(' is not a regular expression"):
        Checkpoint.open(folder, ignore=["re:("])


def test_extra_tensors_are_named_with_what_they_may_be(folder: Path) -> None:
    message = refuse(
        folder, r"tensor 'text.head.weight' \(BF16 \[6, 8\]\) belongs to no weight", weights=WEIGHTS[:2], ignore=()
    )
    assert "2 more tensors unknown, 'text.bias', 'vision.patch'" in message
    weights = [*WEIGHTS[:2], Weight("head", "norm.weight", (8,)), WEIGHTS[3]]
    assert "b.safetensors: tensor 'text.head.weight'" in refuse(folder, "nearest is 'text.norm.weight'", weights)


def test_missing_tensors_are_named_with_the_nearest(folder: Path) -> None:
    weights = [Weight("norm", "norms.weight", (8,)), *WEIGHTS[1:]]
    refuse(folder, "tensor 'text.norms.weight' of weight 'norm' is missing, nearest is 'text.norm.weight'", weights)
    weights = [*WEIGHTS, Weight("down", "experts.{expert}.down.weight", (4, 64), DType.INT4, count=2)]
    refuse(folder, r"'text.experts.0.down.weight_packed' .* \(5 more tensors missing\)", weights)
    weights = [Weight("up", "experts.{expert}.up.weight", (4, 64), DType.INT4, count=3)]
    refuse(folder, r"'text.experts.2.up.weight_packed' .* \(2 more tensors missing\)", weights)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (Weight("norm", "norm.weight", (9,)), r"expected BF16 \[9\] for weight 'norm', found BF16 \[8\]"),
        (Weight("norm", "norm.weight", (8,), DType.FP32), r"expected F32 \[8\] for weight 'norm', found BF16 \[8\]"),
        (Weight("head", "head.weight", (8, 6)), r"expected BF16 \[8, 6\] .*, found BF16 \[6, 8\]"),
        (Weight("up", "experts.1.up.weight", (8, 64), DType.INT4), r"_packed': expected I32 \[8, 8\] .*found I32 \[4, 8\]"),
        (Weight("up", "experts.1.up.weight", (4, 64), DType.INT4, group=16), r"_scale': expected BF16 \[4, 4\] .*\[4, 2\]"),
    ],
)  # fmt: skip
def test_shape_or_dtype_that_the_yaml_does_not_say(folder: Path, weight: Weight, message: str) -> None:
    file = "b.safetensors" if weight.name == "head" else "a.safetensors"
    assert str(folder / file) in refuse(folder, message, [weight])


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (Weight("up", "experts.0.up.weight", (4, 63), DType.INT4), "whole groups of 32 .*multiple of 8.*found"),
        (Weight("up", "experts.0.up.weight", (256,), DType.INT4), r"expected an INT4 matrix \[out, in\]"),
        (Weight("up", "experts.0.up.weight", (4, 64), DType.INT4, split=1, shard=Shard(4)),
         "each of 4 ranks needs whole groups of 32 INT4 weights of axis 1, but 64 / 4 = 16; .* divides 2"),
        (Weight("head", "head.weight", (6, 8), split=0, shard=Shard(4)), "each of 4 ranks needs an equal part of axis 0"),
        (Weight("head", "head.weight", (6, 8), split=2, shard=Shard(2)), "split axis 2 does not exist"),
        (Weight("up", "experts.{expert}.up.weight", (4, 64), DType.INT4), "found count 0 with 'experts.{expert}"),
        (Weight("up", "experts.0.up.weight", (4, 64), DType.INT4, count=2), "expected {expert} in the name"),
    ],
)  # fmt: skip
def test_weight_that_no_checkpoint_could_serve(folder: Path, weight: Weight, message: str) -> None:
    refuse(folder, message, [weight])


def test_64_bit_shape_tensors_are_accepted(tmp_path: Path) -> None:
    first, second = tensors()
    first = {name: array.astype(np.int64) if name.endswith("_shape") else array for name, array in first.items()}
    write_sharded(tmp_path, first, second)
    checkpoint = Checkpoint.open(tmp_path, prefix=PREFIX, ignore=["vision.*"])
    checkpoint.check(WEIGHTS)
    assert load(WEIGHTS, checkpoint)["up"].shape == (2, 4, 64)


@pytest.mark.parametrize(
    "file",
    ["../b.safetensors", "/etc/passwd", "x/../../b.safetensors", "..\\b.safetensors", "C:b.safetensors", "./b.safetensors",
     "", ".", "a\nb", "b\0"],
)  # fmt: skip
def test_index_paths_may_not_leave_the_folder(folder: Path, file: str) -> None:
    write_index(folder, {"text.norm.weight": file})
    refuse(folder, "expected shard paths inside the folder")


def test_a_file_name_that_the_system_refuses(folder: Path) -> None:
    write_index(folder, {"text.norm.weight": "x" * 5000})
    refuse(folder, "cannot read it")


def test_shards_in_subfolders_and_behind_links(tmp_path: Path) -> None:
    first, second = tensors()
    (tmp_path / "model" / "sub").mkdir(parents=True)
    write(tmp_path / "blob", first)
    write(tmp_path / "model" / "sub" / "b.safetensors", second)
    (tmp_path / "model" / "a.safetensors").symlink_to("../blob")  # as in the download cache of a hub
    write_index(tmp_path / "model", dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "sub/b.safetensors"))
    Checkpoint.open(tmp_path / "model", prefix=PREFIX, ignore=["vision.*"]).check(WEIGHTS)


def test_missing_shard(folder: Path) -> None:
    (folder / "b.safetensors").unlink()
    refuse(folder, f"{INDEX}: shard 'b.safetensors' is missing; complete the download")
    (folder / "a.safetensors").unlink()
    refuse(folder, r"shard 'a.safetensors' is missing; .* \(1 more shard missing\)")


def test_missing_shard_of_ignored_tensors_alone(tmp_path: Path) -> None:
    first, second = tensors()
    vision = {"vision.patch": second.pop("vision.patch")}
    write_sharded(tmp_path, first, second, vision)
    (tmp_path / "c.safetensors").unlink()
    Checkpoint.open(tmp_path, prefix=PREFIX, ignore=["vision.*"]).check(WEIGHTS)
    refuse(tmp_path, "shard 'c.safetensors' is missing", ignore=())


def test_index_and_shard_of_different_revisions(folder: Path) -> None:
    first, second = tensors()
    where = dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")
    write_index(folder, where | {"text.new": "a.safetensors"})
    refuse(folder, "a.safetensors: tensor 'text.new' is in the index but not in the shard: .* different revisions")
    write_index(folder, {name: file for name, file in where.items() if name not in ("text.bias", "text.head.weight")})
    refuse(
        folder, r"b.safetensors: tensor 'text.bias' is in the shard but not in the index: .* \(1 more tensor affected\)"
    )
    write_index(folder, where | {"text.bias": "a.safetensors"})
    refuse(folder, "a.safetensors: tensor 'text.bias' is in the index but not in the shard")


def rewrite(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        table = json.loads(path.read_text())
        change(table)
        path.write_text(json.dumps(table))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text("{"), "expected JSON, found a fault"),
        (lambda path: path.write_text('{"weight_map": {"a": "x", "a": "y"}}'), "key 'a' appears twice"),
        (rewrite(lambda table: table.pop("weight_map")), "expected weight_map"),
        (rewrite(lambda table: table.update(weight_map={})), "expected weight_map"),
        (rewrite(lambda table: table.update(weight_map=["a"])), "expected weight_map"),
        (rewrite(lambda table: table["weight_map"].update(x=1)), "expected weight_map"),
    ],
)
def test_damaged_index(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder / INDEX)
    assert str(folder / INDEX) in refuse(folder, message)


def test_oversized_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtree.runtime.weights.checkpoint.MAX_ENTRIES", 3)
    refuse(folder, "expected at most 3 tensors, found 10")
    monkeypatch.setattr("ddtree.runtime.weights.strict_json.MAX_BYTES", 100)
    refuse(folder, "expected at most 100 bytes of JSON")


def test_file_that_changes_after_its_header_was_checked(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder, prefix=PREFIX)
    with (folder / "a.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(WeightsError, match="the file changed while loading"):
        checkpoint.tensor("norm.weight")
    (folder / "b.safetensors").unlink()
    with pytest.raises(WeightsError, match="cannot map it"):
        checkpoint.tensor("bias")


def test_dtype_that_numpy_cannot_hold(tmp_path: Path) -> None:
    raw = b'{"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}    '
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + b"\0")
    with pytest.raises(WeightsError, match="dtype F4 cannot be loaded"):
        Checkpoint.open(tmp_path).tensor("x")
