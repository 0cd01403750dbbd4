"""YAML 1.2 to data and marks; files that are no model description."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddtree.errors import SpecError
from ddtree.graph import yaml_text
from ddtree.graph.yaml_text import MAX_BYTES, MAX_DEPTH, Mark, dotted, parse, shown

SCALARS = {
    "1e-5": 1e-5, "1E5": 1e5, "+.5": 0.5, "1.": 1.0, "-0": 0, "010": 10, "0o17": 15, "0xff": 255, "1_000": "1_000",
    "12:30": "12:30", "yes": "yes", "on": "on", "No": "No", "true": True, "FALSE": False, "tRUE": "tRUE", "~": None,
    "null": None, "Null": None, "": None, "2026-01-01": "2026-01-01", "0b11": "0b11", "-.inf": float("-inf"),
    "1e400": float("inf"), "'1'": "1", "=": "=", "<<": "<<",
}  # fmt: skip


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_follow_yaml_1_2(text: str) -> None:
    value = parse(f"a: {text}", "f").data["a"]
    assert value == SCALARS[text] and type(value) is type(SCALARS[text])


def test_nan_is_a_float() -> None:
    value = parse("a: .NaN", "f").data["a"]
    assert isinstance(value, float) and value != value


def test_marks_count_from_one_in_characters() -> None:
    doc = parse("é: [1,\n  {ü: 2}]\n", "f")
    assert doc.mark(("é",)) == Mark("f", 1, 4) and doc.mark(("é",), key=True) == Mark("f", 1, 1)
    assert doc.mark(("é", 1, "ü")) == Mark("f", 2, 7) and doc.mark(("é", 1, "ü"), key=True) == Mark("f", 2, 4)
    assert doc.mark(("é", 1, "no", 3)) == doc.mark(("é", 1)) == Mark("f", 2, 3)


def test_paths_and_values_as_messages_show_them() -> None:
    assert dotted(("blocks", "moe", 2, "op")) == "blocks.moe[2].op"
    assert [shown(v) for v in (None, True, 1.5, "a", [1], {})] == ["null", "true", "1.5", "'a'", "a list", "a mapping"]
    assert len(shown("x" * 1000)) == 60


BROKEN = {
    "a: &x 1\nb: *x": (2, 4, "aliases (*name) are not supported; write the value out"),
    "a: *x": (1, 4, "aliases (*name) are not supported; write the value out"),
    "a: !!python/name:os.system x": (
        1,
        4,
        "tags (tag:yaml.org,2002:python/name:os.system) are not supported; write a plain value",
    ),
    "a:\n - !!int x": (2, 4, "tags (tag:yaml.org,2002:int) are not supported; write a plain value"),
    "a: ! 1": (1, 4, "tags (!) are not supported; write a plain value"),
    "!!map {a: 1}": (1, 1, "tags (tag:yaml.org,2002:map) are not supported; write a plain value"),
    "a: {b: 1, b: 2}": (1, 11, "a.b: duplicate key 'b', first written in line 1; remove one of them"),
    "a: 1\n1: 2\n1: 3": (3, 1, "1: duplicate key '1', first written in line 2; remove one of them"),
    "a: {[b]: 1}": (1, 5, "a: a key must be a plain name"),
    "a: {b: 1": (1, 9, "not YAML: expected ',' or '}', but got '<stream end>'"),
    "a: b: c": (1, 5, "not YAML: mapping values are not allowed here"),
    "a:\n\tb: 1": (2, 1, "not YAML: found character '\\t' that cannot start any token"),
    "a: 'b": (1, 6, "not YAML: found unexpected end of stream"),
    "a: 1\n---\nb: 2": (2, 1, "not YAML: expected a single document in the stream, but found another document"),
    "a: 1\nb: \x07": (2, 4, "not YAML: the character U+0007 is not allowed"),
    "%YAML 3.0\n--- {}": (1, 1, "not YAML: found incompatible YAML document (version 1.* is required)"),
    "": (1, 1, "expected a mapping of keys to values, found an empty file"),
    "# a comment": (1, 1, "expected a mapping of keys to values, found an empty file"),
    "- a": (1, 1, "expected a mapping of keys to values, found a list"),
    "a": (1, 1, "expected a mapping of keys to values, found a single value"),
    "a: " + "1" * 101: (1, 4, "a: a number of 101 characters is too long"),
    "a: 0x" + "f" * 100: (1, 4, "a: a number of 102 characters is too long"),
    "a: " + "[" * 40 + "]" * 40: (1, 4 + MAX_DEPTH, f"nested deeper than {MAX_DEPTH} levels"),
}


@pytest.mark.parametrize("text", BROKEN, ids=[reason[:50] for *_, reason in BROKEN.values()])
def test_what_is_no_plain_yaml_is_refused_at_its_place(text: str) -> None:
    line, column, reason = BROKEN[text]
    with pytest.raises(SpecError) as caught:
        parse(text, "f.yaml")
    assert str(caught.value) == f"f.yaml:{line}:{column}: {reason}"


HOSTILE = {
    "brackets": "[" * 500_000,
    "nested keys": "".join(" " * i + "a:\n" for i in range(1000)),
    "explicit keys": "? " * 200_000,
    "open quotes": "a: '" + "x\n" * 200_000,
    "many keys": "".join(f"k{i}: {{a: 1}}\n" for i in range(3000)) + "k7: 1",
    "anchors": "".join(f"k{i}: &a{i} 1\n" for i in range(3000)) + "x: *a7",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_refused_in_time(kind: str) -> None:
    start = time.process_time()
    with pytest.raises(SpecError):
        parse(HOSTILE[kind], "f")
    assert time.process_time() - start < 5


def _refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        yaml_text.read(path)
    return str(caught.value).removeprefix(f"{path}:")


def test_files_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    assert _refused(file, b"a: 1\nb: \xff") == "2:4: the file is not UTF-8 (byte 0xff)"
    assert _refused(file, "a: 1\n".encode("utf-16")) == "1:1: the file is not UTF-8 (byte 0xff)"
    assert _refused(file, b"a: \xc3") == "1:4: the file is not UTF-8 (byte 0xc3)"
    assert _refused(file, b"\x7fELF\x02\x01\x01\x00") == "1:1: not YAML: the character U+007F is not allowed"
    assert _refused(file, b"a: 1\n\0") == "2:1: not YAML: the character U+0000 is not allowed"
    assert _refused(file, b"#" * (MAX_BYTES + 1)) == "1:1: the file is larger than 1 MiB; a model description is not"


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    doc = yaml_text.read(file)
    assert doc.data == {"a": 1, "b": 2} and doc.mark(("b",)).line == 2
