"""models/schema.json: fresh, valid, and in agreement with the loader about the shipped files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ddtree.graph.schema import json_schema
from ddtree.graph.yaml_text import read

MODELS = Path(__file__).parents[2] / "models"
FILE = MODELS / "schema.json"


def test_the_file_is_fresh() -> None:
    assert json.loads(FILE.read_text(encoding="utf-8")) == json_schema(), "run tools/refresh_schema.py"


def test_it_is_a_json_schema() -> None:
    Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("file", sorted(MODELS.glob("*.yaml")), ids=lambda f: f.name)
def test_the_shipped_files_validate(file: Path) -> None:
    Draft202012Validator(json_schema()).validate(read(file).data)
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=schema.json", "editors find the schema by this line"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kimi_tiny", "budget: 15", "budget: 64"),
        ("kimi_tiny", "budget: 15", "bugdet: 15"),
        ("kimi_tiny", "op: rms_norm", "op: rms_nrm"),
        ("kimi_tiny", "cache: latent}", "cash: latent}"),
        ("kimi_tiny", "layers: 1..7", "layers: 1-7"),
        ("dflash_tiny", "mask_id: 4094\n\n", "mask: 4094\n\n"),
        ("dflash_tiny", "block_size: 8     ", "block_size: 1     "),
    ],
)
def test_an_editor_sees_mistakes(tmp_path: Path, name: str, old: str, new: str) -> None:
    text = (MODELS / f"{name}.yaml").read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "m.yaml"
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    assert not Draft202012Validator(json_schema()).is_valid(read(file).data)


def test_every_key_of_the_decode_section_is_described() -> None:
    described = json_schema()["$defs"]
    for section, key in [
        ("Decode", "block_size"),
        ("Tree", "budget"),
        ("Parallel", "tensor"),
        ("TokenizerSpec", "pattern"),
    ]:
        assert described[section]["properties"][key]["description"]
