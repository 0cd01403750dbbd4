"""Keeps a user's text apart from the control tokens around it while a template mixes them into one string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from ddtree.errors import UsageError

_PRIVATE_USE = range(0xF0000, 0xFFFFE)  # plane 15, which no standard assigns


class Shield:
    """Replaces in untrusted data the characters with which the names of special tokens begin and end.

    A name in the rendered text therefore begins and ends in the template's own text: data cannot write one, neither
    alone, nor with a neighbouring piece of data, nor with the template's text around it. The replacements are
    private-use characters that occur nowhere in `texts`, so putting the originals back is exact; a template still sees
    strings of the right length to compare, trim and serialise.

    names    names of the special tokens, none of them empty
    texts    every text that is rendered: data and the template's source
    restore  table for `str.translate` that undoes `protect`
    """

    def __init__(self, names: Iterable[str], texts: Iterable[str]) -> None:
        used = set().union(*map(set, texts))
        borders = sorted({name[0] for name in names} | {name[-1] for name in names})
        stand_ins = list(islice((chr(code) for code in _PRIVATE_USE if chr(code) not in used), len(borders)))
        if len(stand_ins) < len(borders):
            raise UsageError("the chat uses every private-use character of plane 15; leave some out")
        pairs = list(zip(borders, stand_ins, strict=True))
        self._protect = {ord(border): stand_in for border, stand_in in pairs}
        self.restore = {ord(stand_in): border for border, stand_in in pairs}

    def protect(self, value: Any) -> Any:
        """A copy of JSON-like data with every string, keys included, protected."""
        if isinstance(value, str):
            return value.translate(self._protect)
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value


def strings(value: Any) -> Iterator[str]:
    """Every string in JSON-like data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings(item)
