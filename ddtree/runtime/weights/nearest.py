"""The name that was probably meant."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from difflib import get_close_matches

_SHORTLIST = 64


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like the dotted `name`, or None when none is close.

    The share of common dotted parts chooses a short list first: edit distances to the 200,000 names of a checkpoint would
    take seconds.
    """
    parts = set(name.split("."))

    def common(candidate: str) -> float:
        others = candidate.split(".")
        return len(parts.intersection(others)) / (len(parts) + len(others))

    short = heapq.nlargest(_SHORTLIST, candidates, key=common)
    return next(iter(get_close_matches(name, short, n=1, cutoff=0.5)), None)


def hint(name: str, candidates: Iterable[str]) -> str:
    """`, nearest is 'x'` for a message, or nothing."""
    match = nearest(name, candidates)
    return f", nearest is {match!r}" if match else ""
