"""Fixtures: kimi-tiny's tokenizer and chat format, built once."""

from __future__ import annotations

import pytest

from ddtree.runtime.text import ChatFormat, Tokenizer
from tests.text.support import MODELS, TINY, tiny_spec


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer(tiny_spec(), TINY)


@pytest.fixture(scope="session")
def chat(tiny: Tokenizer) -> ChatFormat:
    return ChatFormat(tiny_spec(), tiny, MODELS)
