"""Rank files: sound ones load, damaged ones say where they are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree.errors import WeightsError
from ddtree.runtime.text.ranks import load_ranks
from tests.text.support import TINY, write_ranks

WORDS = [b"ab", b"abc"]


def edit(line: int, text: bytes) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines[:line], text, *lines[line + 1 :]]


def test_the_shipped_file_has_every_rank() -> None:
    ranks = load_ranks(TINY / "tiktoken.model", 3840)
    assert sorted(ranks.values()) == list(range(3840))


def test_order_blank_lines_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "own.model"
    write_ranks(path, WORDS)
    before = load_ranks(path, 258)
    path.write_bytes(b"\r\n".join(reversed(path.read_bytes().splitlines())) + b"\n\n\n")
    assert load_ranks(path, 258) == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit(257, b"YW!j 257"), r":258: b'YW!j' is not base64"),
        (edit(257, b"YWJj! 257"), r":258: b'YWJj!' is not base64"),
        (edit(257, b"YWJ 257"), r":258: b'YWJ' is not base64"),  # padding lost
        (edit(257, b"YWJj"), r":258: expected `base64 rank`, found b'YWJj'"),
        (edit(257, b"YWJj 257 0"), r":258: expected `base64 rank`"),
        (edit(257, b"YWJj -1"), r":258: expected `base64 rank`"),
        (edit(257, b"YWJj " + b"9" * 5000), r":258: expected `base64 rank`"),
        (edit(0, b"version https://git-lfs.github.com/spec/v1"), r":1: expected `base64 rank`"),
        (edit(257, b"YWJj 256"), r":258: rank 256 stands in the file twice"),
        (edit(257, b"YWI= 257"), r":258: token b'ab' stands in the file twice"),
        (edit(257, b"YWJj 258"), r":258: rank 258 is outside 0..257"),
        (lambda lines: lines[:200], r"expected 258 tokens, found 200; rank 200 is the first missing one"),
        (lambda lines: [], r"expected 258 tokens, found 0; rank 0"),
        (lambda lines: [*lines, b"eHk= 258"], r":259: rank 258 is outside 0..257"),
        (edit(65, b"eHk= 65"), r"no token for the single byte 0x41"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]], message: str) -> None:
    path = tmp_path / "own.model"
    write_ranks(path, WORDS)
    path.write_bytes(b"\n".join(damage(path.read_bytes().splitlines())))
    with pytest.raises(WeightsError, match=message) as caught:
        load_ranks(path, 258)
    assert "own.model" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is missing"):
        load_ranks(tmp_path / "none.model", 258)
    with pytest.raises(WeightsError, match="cannot read"):
        load_ranks(tmp_path, 258)


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "own.model"
    write_ranks(path, [b"ab"])
    assert b"ab" in load_ranks(path, 257)
    write_ranks(path, [b"xy"])
    assert b"xy" in load_ranks(path, 257)
