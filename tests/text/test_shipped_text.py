"""The `text:` sections of the shipped models."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ddtree.graph.text_spec import TextSpec
from ddtree.runtime.text import ChatFormat, Tokenizer
from tests.text.support import MODELS, PATTERN, published_special

SECTIONS = {
    path.stem: section["text"]
    for path in sorted(MODELS.glob("*.yaml"))
    if "text" in (section := yaml.safe_load(path.read_text()))
}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_section_is_valid_and_its_template_renders(name: str, tiny: Tokenizer) -> None:
    spec = TextSpec.model_validate(SECTIONS[name])
    assert spec.chat is not None
    prompt = ChatFormat(spec, tiny, MODELS).render([{"role": "user", "content": "Hi"}])
    assert "Hi" in prompt.text


@pytest.mark.parametrize("name", [name for name in SECTIONS if name.startswith("kimi_")])
def test_kimi_models_share_pattern_and_relative_places_of_special_tokens(name: str) -> None:
    tokenizer = TextSpec.model_validate(SECTIONS[name]).tokenizer
    assert tokenizer.pattern == PATTERN
    offsets = {token: id_ - tokenizer.base_tokens for token, id_ in tokenizer.special.items()}
    assert offsets == {token: id_ - 3840 for token, id_ in published_special().items()}
    assert Path(tokenizer.ranks).name == "tiktoken.model"
