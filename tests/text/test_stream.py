"""Streamed text: every division of the ids gives the same text, and nothing after a stop is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.errors import UsageError
from ddtree.runtime.text import FinishReason, TextStream, Tokenizer
from tests.text.support import own_tokenizer

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.fixture(scope="session")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token for each byte, and `<end>` (256) among four special slots."""
    return own_tokenizer(tmp_path_factory.mktemp("letters"), [], {"<end>": 256})


def divisions(ids: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """Every way to divide the ids into consecutive runs."""
    inner = range(1, len(ids))
    for cuts in (c for n in range(len(ids)) for c in combinations(inner, n)):
        borders = [0, *cuts, len(ids)]
        yield [ids[a:b] for a, b in pairwise(borders)]


def run(stream: TextStream, runs: Sequence[Sequence[int]]) -> str:
    return "".join(map(stream.push, runs)) + stream.finish()


@pytest.mark.parametrize("text", ["é", "漢a", "🙂", "a🙂é", "🙂🙂", "\ufffdx"])
def test_every_division_of_utf8_shows_whole_code_points(letters: Tokenizer, text: str) -> None:
    for runs in divisions(list(text.encode())):
        stream = TextStream(letters)
        shown, seen = "", b""
        for ids in runs:
            shown += stream.push(ids)
            seen += bytes(ids)
            assert shown == seen.decode(errors="ignore")  # all that is complete, and no half of the next one
        assert shown == text and stream.finish() == ""


@pytest.mark.parametrize(
    "damaged", [b"\xf0\x9f\x99", b"a\x80b", b"\xe4\xbd", b"\xff\xfe", b"\xf0\x9fx", b"\xed\xa0\x80"]
)
def test_every_division_of_invalid_bytes_equals_the_whole(letters: Tokenizer, damaged: bytes) -> None:
    for runs in divisions(list(damaged)):
        assert run(TextStream(letters), runs) == damaged.decode(errors="replace")


def test_a_code_point_is_shown_as_soon_as_it_is_complete(letters: Tokenizer) -> None:
    stream = TextStream(letters)
    assert [stream.push([byte]) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]


def test_an_incomplete_code_point_before_a_stop_id_is_replaced(letters: Tokenizer) -> None:
    stream = TextStream(letters, [256])
    assert stream.push([0x61, 0xF0, 0x9F, 256, 0x62]) == "a"
    assert stream.finish() == "\ufffd" and stream.finish() == ""


@pytest.mark.parametrize("where", range(7))
def test_a_stop_id_anywhere_in_a_run_ends_the_text(letters: Tokenizer, where: int) -> None:
    ids = list(b"abcdef")
    ids.insert(where, 256)
    for runs in divisions(ids):
        stream = TextStream(letters, [256])
        assert run(stream, runs) == "abcdef"[:where]
        assert (stream.finish_reason, stream.stop, stream.kept) == (STOP, 256, where + 1)


@pytest.mark.parametrize("where", range(6))
def test_a_stop_string_anywhere_in_a_run_ends_the_text(letters: Tokenizer, where: int) -> None:
    text = "abcde"[:where] + "##" + "abcde"[where:]
    for runs in divisions(list(text.encode())):
        stream = TextStream(letters, [256], ["##"])
        assert run(stream, runs) == "abcde"[:where]
        assert (stream.finish_reason, stream.stop, stream.kept) == (STOP, "##", where + 2)


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stop", "kept"),
    [
        ("abc", ["b", "abc"], "a", "b", 2),  # the first to be complete, not the first to begin
        ("xabc", ["bc", "abc"], "x", "abc", 4),  # complete together: the longer
        ("aab", ["aab"], "", "aab", 3),
        ("aaab", ["aab"], "a", "aab", 4),  # a false start overlaps the match
        ("ababac", ["abac"], "ab", "abac", 6),
        ("a\n\nUser:x", ["\nUser:"], "a\n", "\nUser:", 8),
        ("x漢y", ["漢"], "x", "漢", 4),
        ("ab", ["abc"], "ab", None, 2),  # a start that comes to nothing is shown at the end
        ("ab", ["b", "b"], "a", "b", 2),
    ],
)
def test_stop_strings_in_every_division(
    letters: Tokenizer, text: str, stops: list[str], shown: str, stop: str | None, kept: int
) -> None:
    for runs in divisions(list(text.encode())):
        stream = TextStream(letters, [], stops)
        assert run(stream, runs) == shown
        assert (stream.stop, stream.kept) == (stop, kept)
        assert stream.finish_reason is (STOP if stop else LENGTH)


def test_a_stop_string_inside_one_token(tmp_path: Path) -> None:
    tokenizer = own_tokenizer(tmp_path, [b"ab##cd"])
    stream = TextStream(tokenizer, [], ["##"])
    assert stream.push([256, 0x78]) == "ab" and stream.stopped and stream.kept == 1
    assert stream.push([0x78]) == "" == stream.finish() and stream.kept == 1


def test_a_possible_stop_is_held_back_and_released(letters: Tokenizer) -> None:
    stream = TextStream(letters, [], ["<end>"])
    assert stream.push(list(b"x<en")) == "x"
    assert stream.push(list(b"t")) == "<ent"
    assert stream.push(list(b"<e")) == "" and stream.finish() == "<e"


def test_what_is_held_back_before_a_stop_id_is_text(letters: Tokenizer) -> None:
    stream = TextStream(letters, [256], ["<end>"])
    assert stream.push([*b"x<en", 256]) == "x" and stream.stopped and stream.finish() == "<en"


def test_the_name_of_a_stop_id_written_as_text_is_no_stop(letters: Tokenizer) -> None:
    assert run(TextStream(letters, [256]), [list(b"a<end>b")]) == "a<end>b"


def test_special_tokens_are_shown_by_name_or_left_out(letters: Tokenizer) -> None:
    assert run(TextStream(letters), [[97, 256, 98]]) == "a<end>b"
    stream = TextStream(letters, show_special=False)
    assert run(stream, [[97, 256, 98]]) == "ab" and stream.kept == 3


@pytest.mark.parametrize("limit", range(1, 6))
def test_the_length_limit_inside_a_run(letters: Tokenizer, limit: int) -> None:
    for runs in divisions(list(b"abcde")):
        stream = TextStream(letters, [256], max_tokens=limit)
        assert run(stream, runs) == "abcde"[:limit]
        assert (stream.finish_reason, stream.kept, stream.stop) == (LENGTH, limit, None)


def test_a_stop_in_the_last_permitted_token_is_a_stop(letters: Tokenizer) -> None:
    by_id = TextStream(letters, [256], max_tokens=2)
    by_id.push([97, 256, 98])
    by_string = TextStream(letters, [], ["ab"], max_tokens=2)
    by_string.push(list(b"abc"))
    assert (by_id.finish_reason, by_string.finish_reason) == (STOP, STOP)


def test_while_running_there_is_no_reason(letters: Tokenizer) -> None:
    stream = TextStream(letters, [256])
    stream.push(list(b"ab"))
    assert stream.finish_reason is None and not stream.stopped
    stream.finish()
    assert stream.finish_reason is LENGTH and stream.stopped and stream.push([97]) == ""


def first_stop(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first, found by reading character by character."""
    for end in range(len(text) + 1):
        if matches := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, matches))]
    return text


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_text_any_stops_any_division(letters: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(st.text(alphabet="ab漢🙂", max_size=12))
    stops = data.draw(st.lists(st.text(alphabet="ab漢🙂", min_size=1, max_size=3), max_size=3))
    ids = list(text.encode())
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)), max_size=6)))
    borders = [0, *cuts, len(ids)]
    runs = [ids[a:b] for a, b in pairwise(borders)]
    assert run(TextStream(letters, [], stops), runs) == first_stop(text, stops)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 259), max_size=12), st.integers(1, 4))
def test_any_ids_stream_like_the_whole(letters: Tokenizer, ids: list[int], size: int) -> None:
    runs = [ids[i : i + size] for i in range(0, len(ids), size)]
    assert run(TextStream(letters), runs) == letters.decode(ids)


def test_bad_arguments_are_refused(letters: Tokenizer) -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        TextStream(letters, [], [""])
    with pytest.raises(UsageError, match="at least 1; found 0"):
        TextStream(letters, max_tokens=0)
    with pytest.raises(UsageError, match="token id 260 is outside"):
        TextStream(letters, [260])
    with pytest.raises(UsageError, match="token id -1 is outside"):
        TextStream(letters).push([-1])
