"""Generated ids to text as they arrive, up to the stop."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from enum import StrEnum

from ddtree.errors import UsageError
from ddtree.runtime.text.tokenizer import Tokenizer


class FinishReason(StrEnum):
    """Why a text ended, by the names of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"


class TextStream:
    """Turns runs of accepted ids into text that is final: nothing shown is ever taken back.

    The text does not depend on how the ids are divided into runs. A code point is shown when it is complete. Of the
    text, the longest tail that may be the start of a stop string is held back. Invalid UTF-8 becomes U+FFFD exactly as
    `bytes.decode(errors="replace")` of the whole does.

    A stop id, a stop string or `max_tokens` ends the text at any place inside a run: the stop and what follows is never
    shown. Of several stop strings the one that is complete first counts (of those that end together, the longest).

    stop_ids      ids that end the text
    stop_strings  strings that end the text, found across token borders
    max_tokens    ids to keep at most (None: no limit). A stop in the last of them is a stop
    show_special  False leaves special tokens out of the text

    stopped        True as soon as more ids change nothing
    finish_reason  None while running; after `finish` at the latest STOP or LENGTH
    stop           the id or string that ended the text, or None
    kept           ids that belong to the output so far, the stop id or the id that completed the stop string included
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_ids: Iterable[int] = (),
        stop_strings: Iterable[str] = (),
        *,
        max_tokens: int | None = None,
        show_special: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = frozenset(map(tokenizer.check_id, stop_ids))
        self._stop_strings = tuple(dict.fromkeys(stop_strings))
        if "" in self._stop_strings:
            raise UsageError("a stop string is empty; it would stop before the first token")
        if max_tokens is not None and max_tokens < 1:
            raise UsageError(f"the number of tokens to generate must be at least 1; found {max_tokens}")
        self._max_tokens = max_tokens
        self._show_special = show_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._flushed = False
        self.finish_reason: FinishReason | None = None
        self.stop: int | str | None = None
        self.kept = 0

    @property
    def stopped(self) -> bool:
        """Whether the text has ended; further ids are ignored."""
        return self.finish_reason is not None

    def push(self, ids: Iterable[int]) -> str:
        """Text that became final with these ids."""
        shown = ""
        for id_ in ids:
            if self.stopped:
                break
            id_ = self._tokenizer.check_id(id_)
            self.kept += 1
            if id_ in self._stop_ids:
                self.finish_reason, self.stop = FinishReason.STOP, id_
            elif self._show_special or not self._tokenizer.is_special(id_):
                shown += self._advance(self._utf8.decode(self._tokenizer.decode_bytes([id_])))
            if not self.stopped and self.kept == self._max_tokens:
                self.finish_reason = FinishReason.LENGTH
        return shown

    def finish(self) -> str:
        """The rest of the text; to be called once after the last id. Without a stop the reason is LENGTH."""
        if self._flushed:
            return ""
        self._flushed = True
        shown = ""
        if not isinstance(self.stop, str):  # after a stop string nothing is left
            shown = self._advance(self._utf8.decode(b"", final=True)) + self._held
            self._held = ""
        self.finish_reason = self.finish_reason or FinishReason.LENGTH
        return shown

    def _advance(self, text: str) -> str:
        """Take decoded text in and return what can be shown."""
        self._held += text
        # Nothing before `_held` can start a match: it holds the longest tail that may.
        ends = [
            (start + len(stop), start, stop) for stop in self._stop_strings if (start := self._held.find(stop)) >= 0
        ]
        if ends:
            _, start, self.stop = min(ends)
            self.finish_reason = FinishReason.STOP
            shown, self._held = self._held[:start], ""
            return shown
        border = len(self._held) - self._possible_start()
        shown, self._held = self._held[:border], self._held[border:]
        return shown

    def _possible_start(self) -> int:
        """Length of the longest tail of the held text that a stop string starts with."""
        for length in range(min(len(self._held), max(map(len, self._stop_strings), default=1) - 1), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stop_strings):
                return length
        return 0
