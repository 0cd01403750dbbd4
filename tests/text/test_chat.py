"""The chat template, byte rule by byte rule, and the checks of the messages before it."""

from __future__ import annotations

from typing import Any

import pytest

from ddtree.errors import UsageError
from ddtree.runtime.text import ChatFormat, Tokenizer
from tests.text.support import MODELS, chat_of, tiny_spec

WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def user(content: Any = "Hi", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: Any = "Yo", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "get_weather", "arguments": arguments}, **more}


def body(chat: ChatFormat, *messages: dict[str, Any], **options: Any) -> str:
    return chat.render(messages, generation_prompt=False, **options).text


@pytest.mark.parametrize(
    ("role", "mark"),
    [("user", "<|im_user|>"), ("system", "<|im_system|>"), ("tool_declare", "<|im_system|>")],
)
def test_a_turn(chat: ChatFormat, role: str, mark: str) -> None:
    assert body(chat, {"role": role, "content": " Hi\n"}) == f"{mark}{role}<|im_middle|> Hi\n<|im_end|>"


def test_nothing_stands_between_turns_and_no_system_prompt_is_added(chat: ChatFormat) -> None:
    assert body(chat, user("a"), assistant("b"), user("c")) == (
        "<|im_user|>user<|im_middle|>a<|im_end|><|im_assistant|>assistant<|im_middle|><think></think>b<|im_end|>"
        "<|im_user|>user<|im_middle|>c<|im_end|>"
    )


def test_a_name_stands_for_the_role(chat: ChatFormat) -> None:
    assert body(chat, user("a", name="Ada")) == "<|im_user|>Ada<|im_middle|>a<|im_end|>"
    assert body(chat, user("a", name=None)) == "<|im_user|>user<|im_middle|>a<|im_end|>"


def test_tools_come_first(chat: ChatFormat) -> None:
    text = chat.render([{"role": "system", "content": "S"}, user()], [WEATHER]).text
    declaration = (
        "# Tools\n\n## functions\nnamespace functions {\ntype get_weather = (_: {\n  city?: string\n}) => any;\n}\n"
    )
    assert text.startswith(
        f"<|im_system|>tool_declare<|im_middle|>{declaration}<|im_end|><|im_system|>system<|im_middle|>S<|im_end|>"
    )


def test_a_schema_without_types_falls_back_to_compact_sorted_json(chat: ChatFormat) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"é": {"title": "<a>"}}}}}
    assert chat.render([user()], [tool]).text.startswith(
        '<|im_system|>tool_declare<|im_middle|>[{"function":{"name":"f","parameters":{"properties":{"é":{"title":"<a>"}}}},'
        '"type":"function"}]<|im_end|>'
    )


def test_the_spec_selects_json(tiny: Tokenizer) -> None:
    tools = {**tiny_spec().chat.tools.model_dump(), "declaration": "json", "sort_keys": False}  # type: ignore[union-attr]
    chat = ChatFormat(tiny_spec(tools=tools), tiny, MODELS)
    assert '<|im_middle|>[{"type":"function","function":{"name"' in chat.render([user()], [WEATHER]).text


@pytest.mark.parametrize(
    "more", [{"reasoning": "R"}, {"reasoning_content": "R"}, {"reasoning": "R", "reasoning_content": "Q"}]
)
def test_reasoning_is_kept_after_the_last_answer_only(chat: ChatFormat, more: dict[str, str]) -> None:
    turns = [user(), assistant("A", **more), user(), assistant("B", tool_calls=[call(id="i")], **more)]
    text = body(chat, *turns)
    assert "<think></think>A" in text and "<think>R</think>B" in text
    # An answer at the end makes itself and all before it history.
    assert "R" not in body(chat, *turns, assistant("C", **more))


def test_preserve_thinking_keeps_all_reasoning(chat: ChatFormat) -> None:
    turns = [user(), assistant("A", reasoning="P"), user(), assistant("B", reasoning="Q", tool_calls=[call()])]
    text = body(chat, *turns, flags={"preserve_thinking": True})
    assert "<think>P</think>A" in text and "<think>Q</think>B" in text


@pytest.mark.parametrize("preserve", [False, True])
def test_without_thinking_no_reasoning_is_kept(chat: ChatFormat, preserve: bool) -> None:
    flags = {"thinking": False, "preserve_thinking": preserve}
    assert "<think></think>B" in body(chat, user(), assistant("B", reasoning="R", tool_calls=[call()]), flags=flags)


def test_tool_calls(chat: ChatFormat) -> None:
    message = assistant(None, tool_calls=[call('{"city":"é" }', id="mine"), call({"city": "é", "n": 1})])
    assert body(chat, message) == (
        "<|im_assistant|>assistant<|im_middle|><think></think><|tool_calls_section_begin|>"
        '<|tool_call_begin|>mine<|tool_call_argument_begin|>{"city":"é" }<|tool_call_end|>'
        '<|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{"city": "é", "n": 1}<|tool_call_end|>'
        "<|tool_calls_section_end|><|im_end|>"
    )


def test_calls_without_an_id_are_counted_over_the_chat(chat: ChatFormat) -> None:
    text = body(chat, assistant(tool_calls=[call(), call()]), assistant(tool_calls=[call()]))
    assert [f"get_weather:{i}<" in text for i in range(4)] == [True, True, True, False]


def test_a_tool_result(chat: ChatFormat) -> None:
    message = {"role": "tool", "tool_call_id": "functions.f:0", "content": "22 C"}
    assert body(chat, message) == "<|im_system|>tool<|im_middle|>## Return of functions.f:0\n22 C<|im_end|>"


@pytest.mark.parametrize(
    ("flags", "end", "inside"),
    [({}, "<think>", True), ({"thinking": True}, "<think>", True), ({"thinking": False}, "<think></think>", False)],
)
def test_the_generation_prompt(chat: ChatFormat, flags: dict[str, bool], end: str, inside: bool) -> None:
    prompt = chat.render([user()], flags=flags)
    assert prompt.text == f"<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|>{end}"
    assert prompt.in_reasoning is inside


def test_content_parts_join_without_a_separator(chat: ChatFormat) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b "}]
    image = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>\n"
    assert body(chat, user(parts)) == f"<|im_user|>user<|im_middle|>a{image}b <|im_end|>"


def test_ids_are_special_tokens_and_joined_text(chat: ChatFormat, tiny: Tokenizer) -> None:
    prompt = chat.render([user([{"type": "text", "text": "de"}, {"type": "text", "text": "f x"}])])
    special = tiny.special
    assert prompt.ids == [
        *(special["<|im_user|>"], *tiny.encode("user"), special["<|im_middle|>"], *tiny.encode("def x")),
        *(special["<|im_end|>"], special["<|im_assistant|>"], *tiny.encode("assistant"), special["<|im_middle|>"]),
        special["<think>"],
    ]
    assert tiny.decode(prompt.ids) == prompt.text


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "has no messages"),
        (["Hi"], r"messages\[0\]: must be an object"),
        (
            [user(), {"role": "assistent", "content": "a"}],
            r"messages\[1\]: role must be one of system, user, .*'assistent'",
        ),
        ([{"content": "a"}], "role must be one of"),
        ([{"role": ["user"], "content": "a"}], "role must be one of"),
        ([user(None)], "needs content"),
        ([user(3)], "content must be text or a list"),
        ([user([{"type": "video"}])], "takes parts of type text, image, image_url; found 'video'"),
        ([user([{"type": "text"}])], "a text part needs text"),
        ([user(["a"])], "found None"),
        ([user(name=3)], "name must be text"),
        ([assistant(reasoning=["a"])], "reasoning must be text"),
        ([{"role": "tool", "content": "a"}], "tool_call_id must name the call"),
        ([user(tool_calls=[call()])], "only an assistant makes tool calls"),
        ([assistant(tool_calls={"a": 1})], "tool_calls must be a list"),
        ([assistant(tool_calls=[{}])], r"messages\[0\].tool_calls\[0\]: must have an object `function`"),
        ([assistant(tool_calls=[call(None)])], "arguments must be JSON text or an object"),
        ([assistant(tool_calls=[call(id=3)])], "id must be text"),
        ([assistant(tool_calls=[{"function": {"name": "", "arguments": "{}"}}])], "function.name must be text"),
    ],
)
def test_messages_that_do_not_fit(chat: ChatFormat, messages: list[Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        chat.render(messages)


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        ("f", r"tools\[0\]: must be an object with a type"),
        ({"function": {}}, "must be an object with a type"),
        ({"type": "function"}, "must have an object `function`"),
        ({"type": "function", "function": {}}, "function.name must be text"),
        ({"type": "function", "function": {"name": "f", "parameters": [1]}}, "parameters must be an object"),
    ],
)
def test_tools_that_do_not_fit(chat: ChatFormat, tool: Any, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        chat.render([user()], [tool])


def test_deep_nesting_is_refused(chat: ChatFormat) -> None:
    deep: Any = {}
    for _ in range(2000):
        deep = {"a": deep}
    with pytest.raises(UsageError, match="nested deeper than 64"):
        chat.render([user(extra=deep)])
    with pytest.raises(UsageError, match="nested deeper than 64"):
        chat.render([user()], [{"type": "web", "schema": deep}])


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"thinkin": True}, "no flag 'thinkin'; flags: thinking, preserve_thinking"),
        ({"messages": True}, "no flag 'messages'"),
        ({"thinking": "no"}, "thinking must be of type bool"),
        ({"thinking": 1}, "thinking must be of type bool"),
    ],
)
def test_flags_that_do_not_fit(chat: ChatFormat, flags: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        chat.render([user()], flags=flags)


def test_a_model_without_tools_or_reasoning(tiny: Tokenizer) -> None:
    chat = chat_of(tiny, "{{ messages[0].content }}", tools=None, reasoning=None)
    assert chat.render([user()]).in_reasoning is False
    with pytest.raises(UsageError, match="no format for tools"):
        chat.render([user()], [WEATHER])
    with pytest.raises(UsageError, match="no format for tool calls"):
        chat.render([assistant(tool_calls=[call()])])


def test_a_model_without_a_chat_format(tiny: Tokenizer) -> None:
    with pytest.raises(UsageError, match="no chat format"):
        ChatFormat(tiny_spec().model_copy(update={"chat": None}), tiny, MODELS)
