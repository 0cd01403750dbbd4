"""Safetensors headers: what is accepted, and one clear line for every way to break one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.errors import WeightsError
from ddtree.runtime.weights.header import BITS, parse_header, read_header
from tests.weights.build import bf16, data_of, describe, file_bytes

TENSORS = {"a": bf16([[1, 2], [3, 4]]), "b": np.arange(3, dtype=np.float32), "c": np.array([7], np.int64)}
DATA = data_of(TENSORS)


def table(**changes: dict[str, Any]) -> dict[str, Any]:
    """The header of TENSORS with fields of some tensors replaced."""
    header = describe(TENSORS)
    for name, fields in changes.items():
        header[name] = header.get(name, {}) | fields
    return header


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> bytes:
    return json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


def refuse(path: Path, raw: bytes, message: str) -> None:
    path.write_bytes(raw)
    with pytest.raises(WeightsError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4


def test_entries_give_dtype_shape_and_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    raw = file_bytes(describe(TENSORS), DATA)
    path.write_bytes(raw)
    header = read_header(path)
    assert header.size == len(raw)
    assert list(header.entries) == ["a", "b", "c"]
    for name, array in TENSORS.items():
        found = header.entries[name]
        assert found.shape == array.shape
        assert raw[found.start : found.start + found.nbytes] == array.tobytes()


def test_order_in_json_does_not_matter_and_empty_tensors_are_allowed(tmp_path: Path) -> None:
    header = dict(reversed(table(empty={"dtype": "F32", "shape": [0, 5], "data_offsets": [8, 8]}).items()))
    entries = parse_header(json.dumps(header).encode(), tmp_path, len(DATA))
    assert list(entries) == ["a", "empty", "b", "c"]
    assert entries["empty"].nbytes == 0


def test_dtypes_of_less_than_a_byte_are_measured_in_bits(tmp_path: Path) -> None:
    assert parse_header(entry("F4", [3, 2], [0, 3]), tmp_path, 3)["a"].nbytes == 3
    with pytest.raises(WeightsError, match=r"expected 20 bits for F4 \[5\], found 24"):
        parse_header(entry("F4", [5], [0, 3]), tmp_path, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": {"dtype": "Q4"}}, "tensor 'b': expected a dtype of F4, .*, found 'Q4'"),
        ({"b": {"dtype": ["F32"]}}, "tensor 'b': expected a dtype"),
        ({"b": {"dtype": "F64"}}, r"tensor 'b': expected 192 bits for F64 \[3\], found 96"),
        ({"b": {"shape": [4]}}, r"tensor 'b': expected 128 bits for F32 \[4\], found 96"),
        ({"b": {"shape": [-3]}}, r"tensor 'b': expected a shape .* found \[-3\]"),
        ({"b": {"shape": [True, 3]}}, "tensor 'b': expected a shape"),
        ({"b": {"shape": [3.0]}}, "tensor 'b': expected a shape"),
        ({"b": {"shape": 3}}, "tensor 'b': expected a shape"),
        ({"b": {"shape": [1] * 9 + [3]}}, "tensor 'b': expected a shape of at most 8 sizes"),
        ({"b": {"shape": [1 << 70, 0]}}, "tensor 'b': expected a shape"),
        ({"b": {"shape": [1 << 62, 1 << 62]}}, "tensor 'b': expected 680.* bits"),  # wraps to 0 in 64 bits
        ({"b": {"data_offsets": [20, 8]}}, "tensor 'b': expected data_offsets with 0 <= begin <= end"),
        ({"b": {"data_offsets": [-4, 8]}}, "tensor 'b': expected data_offsets with 0 <= begin <= end"),
        ({"b": {"data_offsets": [8]}}, r"tensor 'b': expected data_offsets \[begin, end\], found \[8\]"),
        ({"b": {"data_offsets": [8.0, 20.0]}}, r"tensor 'b': expected data_offsets \[begin, end\]"),
        ({"b": {"data_offsets": [4, 16]}}, "tensor 'b': expected data at offset 8, found 4: it overlaps"),
        ({"b": {"data_offsets": [12, 24]}}, "tensor 'b': expected data at offset 8, found 12: it leaves a hole"),
        ({"a": {"data_offsets": [1 << 40, (1 << 40) + 8]}}, "tensor 'b': expected data at offset 0, .* hole"),
        ({"b": {"extra": 1}}, "tensor 'b': expected an object with data_offsets, dtype, shape"),
        ({"__metadata__": {"format": 1}}, "expected __metadata__ of strings"),
    ],
)
def test_one_broken_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    refuse(tmp_path / "x.safetensors", file_bytes(table(**changes), DATA), message)


def test_tensor_that_is_no_object(tmp_path: Path) -> None:
    refuse(
        tmp_path / "x.safetensors", file_bytes(describe(TENSORS) | {"b": [1]}, DATA), "tensor 'b': expected an object"
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "found 0 bytes"),
        (b"\x01\x00", "found 2 bytes"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "header of at most 100,000,000 bytes, found a length of 9,223,"),
        ((500).to_bytes(8, "little") + b"{}", "truncated: expected a header of 500 bytes, found 2"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (file_bytes(b"not json", b""), "expected JSON, found a fault"),
        (file_bytes(b"\xff\xfe{}", b""), "expected JSON, found a fault"),
        (file_bytes("{}".encode("utf-16"), b""), "expected JSON, found a fault"),
        (file_bytes(b"[]", b""), "expected a JSON object, found list"),
        (file_bytes(b"[" * 100_000, b""), "expected JSON, found a fault"),
        (file_bytes(b'{"a": NaN}', b""), "NaN is not a JSON number"),
        (file_bytes(b'{"a": ' + b"9" * 5000 + b"}", b""), "expected JSON, found a fault"),
        (file_bytes(entry()[:-1] + b"," + entry()[1:], bytes(4)), "key 'a' appears twice"),
        (file_bytes(entry().replace(b'"shape"', b'"dtype": "F32", "shape"'), bytes(4)), "key 'dtype' appears twice"),
        (file_bytes(describe(TENSORS), DATA[:-1]), "tensor 'c': expected 28 bytes of data, found 27: .* truncated"),
        (file_bytes(describe(TENSORS), DATA[:10]), "tensor 'b': expected 28 bytes of data, found 10: .* truncated"),
        (
            file_bytes(describe(TENSORS), DATA + b"x"),
            "expected 28 bytes of data, found 29: bytes that belong to no tensor",
        ),
    ],
)
def test_broken_file(tmp_path: Path, raw: bytes, message: str) -> None:
    refuse(tmp_path / "x.safetensors", raw, message)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(WeightsError, match="expected a safetensors file, found none"):
            read_header(path)


def test_too_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddtree.runtime.weights.header.MAX_ENTRIES", 2)
    refuse(tmp_path / "x.safetensors", file_bytes(describe(TENSORS), DATA), "expected at most 2 tensors, found 3")


def test_a_hostile_name_stays_on_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes({"\n\ud800" * 10_000: 1}, b""))
    with pytest.raises(WeightsError, match="expected an object") as caught:
        read_header(path)
    assert len(str(caught.value).replace(str(path), "").encode().splitlines()) == 1
    assert len(str(caught.value)) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 66) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.fixed_dictionaries(
    {"dtype": st.sampled_from(sorted(BITS)) | JSON, "shape": st.lists(st.integers(-1, 9), max_size=4) | JSON,
     "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | JSON}
)  # fmt: skip


def sound_or_refused(path: Path, raw: bytes) -> None:
    """read_header either raises WeightsError or gives entries that lie in the file."""
    path.write_bytes(raw)
    try:
        header = read_header(path)
    except WeightsError:
        return
    assert sum(found.nbytes for found in header.entries.values()) + 8 + int.from_bytes(raw[:8], "little") == len(raw)
    assert all(8 <= found.start <= found.start + found.nbytes <= len(raw) for found in header.entries.values())


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "x.safetensors"


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=64) | st.builds(file_bytes, st.binary(max_size=64), st.binary(max_size=16)))
def test_fuzz_bytes(scratch: Path, raw: bytes) -> None:
    sound_or_refused(scratch, raw)


@settings(max_examples=300, deadline=None)
@given(header=st.dictionaries(st.text(max_size=4), FIELDS | JSON, max_size=4), size=st.integers(0, 40))
def test_fuzz_objects(scratch: Path, header: dict[str, Any], size: int) -> None:
    sound_or_refused(scratch, file_bytes(header, bytes(size)))


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 300), byte=st.integers(0, 255), cut=st.integers(0, 400))
def test_fuzz_one_byte_of_a_good_file(scratch: Path, place: int, byte: int, cut: int) -> None:
    raw = bytearray(file_bytes(describe(TENSORS), DATA))
    raw[place % len(raw)] = byte
    sound_or_refused(scratch, bytes(raw[: max(cut, 1)] if cut < 300 else raw))
