"""config.json against the YAML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree.errors import WeightsError
from ddtree.runtime.weights import check_config

CONFIG = {
    "hidden_size": 256, "rms_norm_eps": 1e-6, "causal": False, "rope_scaling": None, "a.b": 1,
    "dflash_config": {"target_layer_ids": [1, 3, 5], "mask_token_id": 4094},
}  # fmt: skip


def line(key: str) -> str:
    return f"models/dflash.yaml:{len(key)}:3"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_equal_values_pass(path: Path) -> None:
    expected = {
        "hidden_size": 256.0, "rms_norm_eps": 1e-6, "causal": False, "rope_scaling": None, "a.b": 1,
        "dflash_config.target_layer_ids": (1, 3, 5), "dflash_config": {"target_layer_ids": [1, 3, 5], "mask_token_id": 4094},
    }  # fmt: skip
    check_config(path, expected, line)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("hidden_size", 512, "256"),
        ("rms_norm_eps", 1e-5, "1e-06"),
        ("causal", 0, "False"),
        ("hidden_size", True, "256"),
        ("rope_scaling", 0, "None"),
        ("dflash_config.target_layer_ids", (1, 3), r"\[1, 3, 5\]"),
        ("dflash_config.target_layer_ids", (1, 3, 6), r"\[1, 3, 5\]"),
        ("dflash_config.mask_token_id.x", 1, "no such key"),
        ("sliding_window", 256, "no such key"),
    ],
)
def test_mismatch_names_the_yaml_line(path: Path, key: str, value: object, found: str) -> None:
    with pytest.raises(WeightsError, match=rf"dflash\.yaml:{len(key)}:3 gives {key} = .*, found {found}") as caught:
        check_config(path, {"a.b": 1, key: value}, line)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 4


def test_optional_keys_may_be_absent_but_not_different(path: Path) -> None:
    check_config(path, {"sliding_window": 256}, line, optional={"sliding_window"})
    with pytest.raises(WeightsError, match="hidden_size = 1, found 256"):
        check_config(path, {"hidden_size": 1}, line, optional={"hidden_size"})


def test_many_mismatches_stay_on_one_line(path: Path) -> None:
    with pytest.raises(WeightsError, match=r"\(2 more\)") as caught:
        check_config(path, {f"key{i}": i for i in range(5)}, line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"[1]", b'{"a": 1, "a": 2}', b"\xff"])
def test_damaged_config(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    with pytest.raises(WeightsError, match=r"config\.json: expected"):
        check_config(path, {}, line)


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config\.json: cannot read it: No such file"):
        check_config(tmp_path / "config.json", {}, line)
