"""Text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import index
from pathlib import Path

import tiktoken

from ddtree.errors import SpecError, UsageError
from ddtree.graph.text_spec import ChunkLimits, TextSpec
from ddtree.runtime.text.ranks import load_ranks


class Tokenizer:
    """The tokenizer that the YAML describes, on the rank file of the weights folder.

    vocab    number of ids; valid ids are 0..vocab-1
    special  all special tokens, unnamed slots included: name -> id
    bos      id that starts a text, or None

    Immutable after construction, so threads may share it.
    Raises WeightsError for a missing or damaged rank file, SpecError for a pattern that is no regular expression.
    """

    def __init__(self, spec: TextSpec, folder: Path) -> None:
        self._spec = spec
        ranks = load_ranks(folder / spec.tokenizer.ranks, spec.tokenizer.base_tokens)
        self.vocab = spec.tokenizer.vocab
        self.special: Mapping[str, int] = spec.tokenizer.slots()
        self.bos = self.special[spec.bos.token] if spec.bos else None
        self._prompt_start = [self.special[spec.bos.token]] if spec.bos and spec.bos.completion else []
        self._bytes = [*sorted(ranks, key=ranks.__getitem__), *(name.encode() for name in self.special)]
        # Longest first: of two names that start alike, the longer one is meant.
        names = sorted(self.special, key=len, reverse=True)
        self._special_name = re.compile(f"({'|'.join(map(re.escape, names))})") if names else re.compile(r"(?!)()")
        try:
            # Special tokens stay out of the encoding on purpose: no text can produce them.
            self._encoding = tiktoken.Encoding(
                spec.tokenizer.ranks, pat_str=spec.tokenizer.regex, mergeable_ranks=ranks, special_tokens={}
            )
        except ValueError as error:
            reason = str(error).splitlines()[-1]
            raise SpecError(f"not a regular expression: {reason}", path="text.tokenizer.pattern") from None

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. The name of a special token is text like any other: the result holds base tokens only.

        Lone surrogates become U+FFFD.
        """
        ids: list[int] = []
        for chunk in _chunks(text, self._spec.tokenizer.limits):
            ids += self._encoding.encode_ordinary(chunk)
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw completion's prompt: plain text, after BOS if the YAML says so. UsageError when it is empty."""
        if not text:
            raise UsageError("the prompt is empty; give at least one character")
        return self._prompt_start + self.encode(text)

    def encode_markup(self, text: str, restore: Mapping[int, str] | None = None) -> list[int]:
        """Ids of text that a template wrote, in which names of special tokens are special tokens.

        restore  `str.translate` table for the text *between* special tokens. Text of a user that must stay plain
                 arrives with its characters replaced (see `Shield`) and gets them back here, too late to be special.
        """
        ids: list[int] = []
        for place, piece in enumerate(self._special_name.split(text)):
            if place % 2:
                ids.append(self.special[piece])
            elif piece:
                ids += self.encode(piece.translate(restore) if restore else piece)
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of the ids; a special token gives its name. UsageError for an id outside the vocabulary."""
        return b"".join(self._bytes[self.check_id(id_)] for id_ in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def is_special(self, id_: int) -> bool:
        """Whether the id is one of the special slots."""
        return self.check_id(id_) >= self._spec.tokenizer.base_tokens

    def check_id(self, id_: int) -> int:
        """The id as a Python int; UsageError unless it is in 0..vocab-1."""
        try:
            number = index(id_)
        except TypeError:
            raise UsageError(f"a token id is an integer; found {id_!r}") from None
        if not 0 <= number < self.vocab:
            raise UsageError(f"token id {number} is outside the vocabulary, 0..{self.vocab - 1}")
        return number


def _chunks(text: str, limits: ChunkLimits) -> Iterator[str]:
    """Cut text at every `characters`, and inside each part after every `run` characters of a long run."""
    for start in range(0, len(text), limits.characters):
        part = text[start : start + limits.characters]
        if len(part) <= limits.run:
            yield part
            continue
        begin = 0
        for match in re.finditer(r"\S+|\s+", part):
            for cut in range(match.start() + limits.run, match.end(), limits.run):
                yield part[begin:cut]
                begin = cut
        yield part[begin:]
