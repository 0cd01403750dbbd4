"""Loading: a rank's part of every weight equals the part of the whole one; damaged values are refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ddtree.errors import WeightsError
from ddtree.graph.tensor import DType, Shard, Weight
from ddtree.runtime.weights import Checkpoint, Int4, load
from tests.weights.build import bf16, int4_tensors, write

OUT, IN, EXPERTS = 8, 256, 3


WHOLE = Shard()


def weights(shard: Shard = WHOLE) -> list[Weight]:
    return [
        Weight("norm", "norm.weight", (IN,), shard=shard),
        Weight("bias", "bias", (EXPERTS,), DType.FP32, shard=shard),
        Weight("rows", "linear.weight", (OUT, IN), split=0, shard=shard),
        Weight("columns", "linear.weight", (OUT, IN), split=1, shard=shard),
        Weight("stack", "stack.{expert}", (OUT, 4), split=0, count=EXPERTS, shard=shard),
        Weight("up", "experts.{expert}.weight", (OUT, IN), DType.INT4, split=0, count=EXPERTS, shard=shard),
        Weight("down", "experts.{expert}.weight", (OUT, IN), DType.INT4, split=1, count=EXPERTS, shard=shard),
        Weight("one", "experts.1.weight", (OUT, IN), DType.INT4, split=1, shard=shard),
    ]


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    table = {
        "bias": rng.normal(size=EXPERTS).astype(np.float32),
        "norm.weight": bf16(rng.normal(size=IN)),
        "linear.weight": bf16(rng.normal(size=(OUT, IN))),
    }
    for expert in reversed(range(EXPERTS)):  # file order is not expert order
        table |= int4_tensors(f"experts.{expert}.weight", rng, OUT, IN)
        table[f"stack.{expert}"] = bf16(rng.normal(size=(OUT, 4)))
    return table


def checkpoint(folder: Path, table: dict[str, np.ndarray] | None = None) -> Checkpoint:
    write(folder / "model.safetensors", table or tensors())
    return Checkpoint.open(folder)


def dense(value: np.ndarray | Int4) -> np.ndarray:
    return value.dequantise(ml_dtypes.bfloat16) if isinstance(value, Int4) else value


def test_whole_weights_have_the_bits_of_the_files(tmp_path: Path) -> None:
    table = tensors()
    loaded = load(weights(), checkpoint(tmp_path))
    assert list(loaded) == [weight.name for weight in weights()]
    np.testing.assert_array_equal(loaded["norm"], table["norm.weight"])
    np.testing.assert_array_equal(loaded["bias"], table["bias"])
    np.testing.assert_array_equal(loaded["columns"], table["linear.weight"])
    np.testing.assert_array_equal(loaded["stack"], [table[f"stack.{e}"] for e in range(EXPERTS)])
    up = loaded["up"]
    assert isinstance(up, Int4)
    assert (up.packed.dtype, up.scale.dtype, up.group) == (np.uint32, ml_dtypes.bfloat16, 32)
    for e in range(EXPERTS):
        np.testing.assert_array_equal(up.packed[e].view(np.int32), table[f"experts.{e}.weight_packed"])
        np.testing.assert_array_equal(up.scale[e], table[f"experts.{e}.weight_scale"])


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_hold_slices_of_the_dequantised_matrix(tmp_path: Path, size: int) -> None:
    opened = checkpoint(tmp_path)
    whole = {name: dense(value) for name, value in load(weights(), opened).items()}
    for rank in range(size):
        mine = weights(Shard(size, rank))
        for weight, (name, value) in zip(mine, load(mine, opened).items(), strict=True):
            axis = None if weight.split is None else weight.split + bool(weight.count)
            want = whole[name] if axis is None else np.split(whole[name], size, axis)[rank]
            assert value.shape == weight.shape, name
            assert value.nbytes == weight.nbytes, name
            np.testing.assert_array_equal(dense(value), want, err_msg=name)


def test_arrays_are_contiguous_read_only_and_mapped_where_possible(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path)
    file = np.frombuffer(opened._map(tmp_path / "model.safetensors"), np.uint8)
    loaded = load(weights(Shard(2, 1)), opened)
    for value in loaded.values():
        for array in (value.packed, value.scale) if isinstance(value, Int4) else (value,):
            assert array.flags.c_contiguous and array.flags.aligned and not array.flags.writeable
    for name, mapped in {"norm": True, "rows": True, "columns": False, "stack": False}.items():
        assert np.shares_memory(loaded[name], file) == mapped, name


def test_unaligned_data_is_copied(tmp_path: Path) -> None:
    table = {"odd": np.zeros(1, np.int64).view(np.float16)[:1], "bias": np.arange(5, dtype=np.float32)}
    opened = checkpoint(tmp_path, table)
    assert not opened.tensor("bias").flags.aligned
    bias = load([Weight("bias", "bias", (5,), DType.FP32)], opened)["bias"]
    assert isinstance(bias, np.ndarray) and bias.flags.aligned
    np.testing.assert_array_equal(bias, table["bias"])


def test_progress_counts_up_to_the_bytes_of_the_rank(tmp_path: Path) -> None:
    mine = weights(Shard(2, 0))
    steps: list[tuple[int, int]] = []
    load(mine, checkpoint(tmp_path), progress=lambda done, total: steps.append((done, total)))
    total = sum(weight.nbytes for weight in mine)
    assert steps[-1] == (total, total)
    assert steps == sorted(steps) and {step[1] for step in steps} == {total}


def test_data_is_read_in_file_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = checkpoint(tmp_path)
    starts: list[int] = []
    view = Checkpoint.view
    monkeypatch.setattr(Checkpoint, "view", lambda self, entry: starts.append(entry.start) or view(self, entry))
    load(weights(), opened)
    assert len(starts) == 4 + EXPERTS + 3 * EXPERTS * 2 + 3
    assert starts == sorted(starts)


def test_a_weight_may_be_listed_twice_but_not_with_two_meanings(tmp_path: Path) -> None:
    opened = checkpoint(tmp_path)
    assert len(load([*weights(), *weights()], opened)) == len(weights())
    with pytest.raises(WeightsError, match="weight 'rows' is described twice"):
        load([*weights(), Weight("rows", "norm.weight", (IN,))], opened)


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("experts.2.weight_scale", (5, 6), np.nan, r"expected finite scales, found nan at \[5, 6\]"),
        ("experts.2.weight_scale", (5, 6), -np.inf, r"expected finite scales, found -inf at \[5, 6\]"),
        ("experts.2.weight_scale", (5, 6), 3e38, r"expected finite scales, found 3\.0.*e\+38 at \[5, 6\]"),
        ("norm.weight", (9,), np.inf, r"expected finite values, found inf at \[9\]"),
        ("bias", (1,), np.nan, r"expected finite values, found nan at \[1\]"),
        ("stack.1", (7, 2), np.nan, r"expected finite values, found nan at \[7, 2\]"),
        ("linear.weight", (6, 200), np.nan, r"expected finite values, found nan at \[6, 200\]"),
        ("experts.2.weight_shape", (1,), 128, r"expected the values \[8, 256\] of weight 'up', found \[8, 128\]"),
        ("experts.2.weight_shape", (0,), -8, r"expected the values \[8, 256\] of weight 'up', found \[-8, 256\]"),
    ],
)
def test_damaged_values(tmp_path: Path, name: str, place: tuple[int, ...], value: float, message: str) -> None:
    table = tensors()
    table[name] = table[name].copy()
    table[name][place] = value
    opened = checkpoint(tmp_path, table)
    with pytest.raises(WeightsError, match=rf"model\.safetensors: tensor '{name}': {message}") as caught:
        load(weights(), opened)
    assert "\n" not in str(caught.value)
    sharded = [
        weight for weight in weights(Shard(2, 1)) if weight.name in ("rows", "columns", "stack", "up", "norm", "bias")
    ]
    with pytest.raises(WeightsError, match=message):  # the place is one of the file, not of the rank's part
        load(sharded, opened)


def test_large_matrices_are_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtree.runtime.weights.loader.CHECKED_ELEMENTS", 4)
    opened = checkpoint(tmp_path, {"w": bf16([np.nan] * 5)})
    value = load([Weight("w", "w", (5,))], opened)["w"]
    assert np.isnan(dense(value)).all()


def test_nothing_is_read_when_a_tensor_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = checkpoint(tmp_path)
    monkeypatch.setattr(Checkpoint, "_map", lambda *_: pytest.fail("mapped a file"))
    with pytest.raises(WeightsError, match="is missing"):
        load([*weights(), Weight("x", "x", (1,))], opened)
