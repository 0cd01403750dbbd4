"""What the YAML section `text:` accepts and refuses."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError

from ddtree.graph.text_spec import TextSpec
from tests.text.support import tiny_section


def edited(path: str, value: Any) -> dict[str, Any]:
    section = deepcopy(tiny_section())
    *parents, key = path.split("/")
    place = section
    for parent in parents:
        place = place[parent]
    place[key] = value
    return section


def test_slots_name_every_special_id_once_and_in_order() -> None:
    slots = TextSpec.model_validate(tiny_section()).tokenizer.slots()
    assert list(slots.values()) == list(range(3840, 4096))
    assert slots["[BOS]"] == 3840 and slots["<|reserved_token_3845|>"] == 3845 and slots["[PAD]"] == 4095


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tokenizer/ranks", "../tiktoken.model", "inside its folder"),
        ("tokenizer/ranks", "/etc/passwd", "inside its folder"),
        ("tokenizer/ranks", "..\\tiktoken.model", "inside its folder"),
        ("tokenizer/ranks", "", "inside its folder"),
        ("tokenizer/kind", "sentencepiece", "tiktoken"),
        ("tokenizer/base_tokens", 255, "greater than or equal to 256"),
        ("tokenizer/base_tokens", "3840", "valid integer"),
        ("tokenizer/unnamed", "<|reserved|>", "must contain {id}"),
        ("tokenizer/pattern", [], "at least 1 item"),
        ("tokenizer/limits", {"characters": 0, "run": 1}, "greater than or equal to 1"),
        ("tokenizer/special/[EOS]", 3840, "share id 3840"),
        ("tokenizer/special/[EOS]", 3839, "outside 3840..4095"),
        ("tokenizer/special/[EOS]", 4096, "outside 3840..4095"),
        ("tokenizer/special/", 3845, "needs a name"),
        ("tokenizer/special/<|reserved_token_3848|>", 3845, "name of an unnamed slot"),
        ("tokenizer/padding", True, "Extra inputs"),
        ("bos/token", "<s>", "<s> is not one of tokenizer.special"),
        ("chat/reasoning/close", "<end>", "<end> is not one of tokenizer.special"),
        ("chat/reasoning/implicit_close", ["<x>"], "<x> is not one of tokenizer.special"),
        ("chat/tools/call_end", "<x>", "<x> is not one of tokenizer.special"),
        ("chat/tools/call_id", "{name}", "must contain {index}"),
        ("chat/tools/variable", "a b", "should match pattern"),
        ("chat/tools/declaration", "xml", "'typescript' or 'json'"),
        ("chat/template", "{{ messages }}", "exactly one of template and template_file"),
        ("chat/template_file", None, "exactly one of template and template_file"),
        ("chat/template_file", "../chat.jinja", "inside its folder"),
        ("chat/flags/messages", True, "messages is set by the engine"),
        ("chat/flags/thinking", 0.5, "flags.thinking"),
        ("chat/limits/seconds", 0.0, "greater than 0"),
    ],
)
def test_a_mistake_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TextSpec.model_validate(edited(path, value))
    assert message in str(caught.value)


def test_a_model_may_have_neither_bos_nor_chat() -> None:
    spec = TextSpec.model_validate({"tokenizer": tiny_section()["tokenizer"]})
    assert spec.bos is None and spec.chat is None


def test_the_json_schema_describes_the_fields() -> None:
    definitions = TextSpec.model_json_schema()["$defs"]
    assert "pre-tokeniser" in definitions["TokenizerSpec"]["properties"]["pattern"]["description"]
