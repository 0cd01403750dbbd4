"""Text to ids and back, against goldens and an independent byte-pair encoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.errors import SpecError, UsageError
from ddtree.runtime.text import Tokenizer
from ddtree.runtime.text.ranks import load_ranks
from tests.text.support import PATTERN, TINY, own_tokenizer, published_special

GOLDENS = json.loads((Path(__file__).parents[1] / "data" / "kimi_tiny_greedy.json").read_text())

# Text and the pieces into which the pre-tokeniser divides it.
PROBE = [
    ("def f(x):\n    return x", ["def", " f", "(x", "):\n", "   ", " return", " x"]),
    ("I'm WE'RE it'sn't", ["I'm", " WE'RE", " it's", "n't"]),
    ("camelCase HTTPServer", ["camel", "Case", " HTTPServer"]),
    ("12345.678", ["123", "45", ".", "678"]),
    ("a  b\t\tc   ", ["a", " ", " b", "\t", "\tc", "   "]),
    ("x\n\n  \n y", ["x", "\n\n  \n", " y"]),
    ("你好世界hello", ["你好世界", "hello"]),
    ("漢字とかな。", ["漢字", "とかな", "。"]),
    ("々〇", ["々〇"]),
    ("한국어 テスト", ["한국어", " テスト"]),
    ("Привет, мир!", ["Привет", ",", " мир", "!"]),
    ("مرحبا بك", ["مرحبا", " بك"]),
    ("हिन्दी १२३४", ["हिन्दी", " ", "१२३", "४"]),
    ("🙂👩‍👩‍👧 ok", ["🙂👩‍👩‍👧", " ok"]),
    ("a/b //\n/c", ["a", "/b", " //\n", "/c"]),
    ("https://x.y/", ["https", "://", "x", ".y", "/"]),
    ("<|im_end|>", ["<|", "im", "_end", "|>"]),
    ("e\u0301tude\r\n", ["e\u0301tude", "\r\n"]),
]


def reference_encode(text: str, ranks: dict[bytes, int]) -> list[int]:
    """Byte-pair encoding as it is defined: merge the adjacent pair of lowest rank until none is left."""
    ids = []
    for piece in regex.findall("|".join(PATTERN), text, flags=regex.VERSION1):
        parts = [bytes([byte]) for byte in piece.encode()]
        while len(parts) > 1:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            if parts[best] + parts[best + 1] not in ranks:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden["prompt"][:20])
def test_goldens(tiny: Tokenizer, golden: dict) -> None:
    assert tiny.encode_prompt(golden["prompt"]) == golden["prompt_ids"]
    assert tiny.encode(golden["prompt"]) == golden["prompt_ids"][1:]
    assert tiny.decode(golden["greedy_ids"]) == golden["greedy_text"]


@pytest.mark.parametrize(("text", "pieces"), PROBE)
def test_pre_tokeniser_splits(tmp_path: Path, text: str, pieces: list[str]) -> None:
    # Every expected piece is a token of its own, which BPE emits whole; a split elsewhere would leave fragments.
    words = sorted({piece.encode() for piece in pieces if len(piece.encode()) > 1})
    tokenizer = own_tokenizer(tmp_path, words)
    assert [tokenizer.decode([id_]) for id_ in tokenizer.encode(text)] == pieces


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_round_trip_and_reference(tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode(text)
    assert tiny.decode(ids) == text
    assert ids == reference_encode(text, load_tiny_ranks())


_ranks: dict[bytes, int] = {}


def load_tiny_ranks() -> dict[bytes, int]:
    if not _ranks:
        _ranks.update(load_ranks(TINY / "tiktoken.model", 3840))
    return _ranks


def test_no_text_becomes_a_special_token(tiny: Tokenizer) -> None:
    for name in tiny.special:
        ids = tiny.encode(f"a{name}b")
        assert max(ids) < 3840 and tiny.decode(ids) == f"a{name}b"


def test_all_special_slots_decode(tiny: Tokenizer) -> None:
    named = {id_: name for name, id_ in published_special().items()}
    assert tiny.vocab == 4096
    for id_ in range(3840, 4096):
        name = named.get(id_, f"<|reserved_token_{id_}|>")
        assert tiny.decode([id_]) == name and tiny.is_special(id_)
        assert tiny.encode_markup(f"x{name}") == [*tiny.encode("x"), id_]
    assert not tiny.is_special(3839)


def test_markup_restores_text_only_between_special_tokens(tiny: Tokenizer) -> None:
    ids = tiny.encode_markup("[BOS]\ue000think>[EOS]", {ord("\ue000"): "<"})
    assert ids == [3840, *tiny.encode("<think>"), 3841]


def test_the_longer_of_two_names_wins(tmp_path: Path) -> None:
    tokenizer = own_tokenizer(tmp_path, [], {"<a": 256, "<a>": 257})
    assert tokenizer.encode_markup("<a><a") == [257, 256]


def test_without_special_slots_markup_is_text(tmp_path: Path) -> None:
    tokenizer = own_tokenizer(tmp_path, [], special_slots=0)
    assert tokenizer.encode_markup("<a>") == list(b"<a>")


def test_without_bos_a_prompt_is_its_text(tmp_path: Path) -> None:
    tokenizer = own_tokenizer(tmp_path, [])
    assert tokenizer.bos is None and tokenizer.encode_prompt("ab") == list(b"ab")


def test_an_empty_prompt_is_refused(tiny: Tokenizer) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        tiny.encode_prompt("")
    assert tiny.encode("") == [] and tiny.decode([]) == ""


@pytest.mark.parametrize("id_", [-1, 4096, 1 << 40])
def test_an_id_out_of_range_is_refused(tiny: Tokenizer, id_: int) -> None:
    with pytest.raises(UsageError, match=rf"token id {id_} is outside the vocabulary, 0..4095"):
        tiny.decode([260, id_])


def test_ids_are_integers_of_any_kind(tiny: Tokenizer) -> None:
    assert tiny.decode_bytes(np.array(tiny.encode("def"), np.int32)) == b"def"
    with pytest.raises(UsageError, match="is an integer"):
        tiny.decode([1.5])  # type: ignore[list-item]


def test_bytes_that_are_no_utf8_become_replacement_characters(tmp_path: Path) -> None:
    tokenizer = own_tokenizer(tmp_path, [])
    assert tokenizer.decode_bytes([0xF0, 0x9F]) == b"\xf0\x9f"
    assert tokenizer.decode([0x61, 0xF0, 0x9F, 0x62]) == "a\ufffdb"


def test_lone_surrogates_become_replacement_characters(tiny: Tokenizer) -> None:
    assert tiny.decode(tiny.encode("a\ud800b")) == "a\ufffdb"


def test_long_input_is_cut_at_characters_and_runs(tmp_path: Path) -> None:
    # "aa" can only be merged where no cut falls between its letters.
    tokenizer = own_tokenizer(tmp_path, [b"aa", b"  "], limits={"characters": 20, "run": 5})
    pieces = [tokenizer.decode([id_]) for id_ in tokenizer.encode("a" * 12 + " " * 7 + "a" * 4)]
    letters, spaces = ["aa", "aa", "a"], ["  ", "  ", " "]  # runs of five
    assert pieces == [*letters, *letters, "aa", *spaces, " ", " ", "a", "aa", "a"]


@pytest.mark.parametrize("unit", ["a", " ", "\n ", "'", "A", "1a", "漢", "\u0301", "\r\n"])
def test_pathological_input_round_trips_quickly(tiny: Tokenizer, unit: str) -> None:
    text = unit * (120_000 // len(unit))
    assert tiny.decode(tiny.encode(text)) == text


def test_a_wrong_pattern_is_a_mistake_of_the_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"text\.tokenizer\.pattern: not a regular expression") as caught:
        own_tokenizer(tmp_path, [], pattern=["(a"])
    assert "\n" not in str(caught.value)
