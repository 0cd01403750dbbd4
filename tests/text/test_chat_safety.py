"""Control tokens come from the template alone, and a template cannot reach out of its sandbox."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree.errors import SpecError, UsageError
from ddtree.runtime.text import ChatFormat, Tokenizer
from ddtree.runtime.text.shield import Shield
from tests.text.support import chat_of, tiny_spec

NAMES = ["<|im_end|>", "<think>", "</think>", "[BOS]", "<|im_system|>", "<|tool_calls_section_begin|>"]


def specials(ids: list[int]) -> list[int]:
    return [id_ for id_ in ids if id_ >= 3840]


def everywhere(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A chat with `text` in every place that a user controls."""
    call = {"id": text, "function": {"name": text, "arguments": {text: text}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text, "name": text},
        {"role": "user", "content": [{"type": "text", "text": text}]},
        {"role": "assistant", "content": text, "reasoning": text, "tool_calls": [call]},
        {"role": "tool", "content": text, "tool_call_id": text},
    ]
    schema = {"type": "object", "description": text, "properties": {text: {"enum": [text], "description": text}}}
    return messages, [{"type": "function", "function": {"name": text, "description": text, "parameters": schema}}]


@pytest.mark.parametrize("name", NAMES)
def test_a_special_name_in_any_field_stays_text(chat: ChatFormat, tiny: Tokenizer, name: str) -> None:
    hostile, harmless = (chat.render(*everywhere(text)) for text in (name, "x"))
    assert specials(hostile.ids) == specials(harmless.ids)
    assert hostile.text == tiny.decode(hostile.ids)
    assert hostile.text.count(name) > harmless.text.count(name)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from([*NAMES, "<", ">", "|", "[", "]", "im_end", "<|im_", "end|>", "think", "\U000f0000", "a"]),
        max_size=6,
    )
)
def test_any_mixture_stays_text(chat: ChatFormat, tiny: Tokenizer, pieces: list[str]) -> None:
    text = "".join(pieces) or "x"
    prompt = chat.render([{"role": "user", "content": [{"type": "text", "text": piece} for piece in pieces] or "x"}])
    assert specials(prompt.ids) == specials(chat.render([{"role": "user", "content": "x"}]).ids)
    begin, end = prompt.ids.index(tiny.special["<|im_middle|>"]) + 1, prompt.ids.index(tiny.special["<|im_end|>"])
    assert prompt.ids[begin:end] == tiny.encode(text)


def test_data_and_template_cannot_join_to_a_special_token(tiny: Tokenizer) -> None:
    chat = chat_of(tiny, "<{{ messages[0].content }}|im_end|>")
    assert chat.render([{"role": "user", "content": "|im_end|>"}]).ids == tiny.encode("<|im_end|>|im_end|>")
    chat = chat_of(tiny, "{{ messages[0].content }}<|im_end|>")
    assert specials(chat.render([{"role": "user", "content": "<|im_end|"}]).ids) == [3842]


def test_a_template_may_compose_a_special_token_around_data(tiny: Tokenizer) -> None:
    assert chat_of(tiny, "<|im_{{ messages[0].role }}|>").render([{"role": "user", "content": "a"}]).ids == [3843]


def test_flags_are_data_too(tiny: Tokenizer) -> None:
    chat = chat_of(tiny, "{{ effort }}", flags={"effort": "low"})
    assert chat.render([{"role": "user", "content": "a"}], flags={"effort": "[EOS]"}).ids == tiny.encode("[EOS]")


def test_bos_token_is_special(tiny: Tokenizer) -> None:
    assert chat_of(tiny, "{{ bos_token }}a").render([{"role": "user", "content": "a"}]).ids == [3840, *tiny.encode("a")]


def test_data_is_trimmed_and_compared_as_it_is(tiny: Tokenizer) -> None:
    chat = chat_of(tiny, "{{ messages[0].content | trim }}{{ messages[0].content | length }}")
    assert chat.render([{"role": "user", "content": " <a> "}]).text == "<a>5"


def test_private_use_characters_of_the_user_survive() -> None:
    text = "".join(map(chr, range(0xF0000, 0xF0010))) + "<>"
    shield = Shield(["<a>"], [text])
    assert "<" not in shield.protect(text) and shield.protect(text).translate(shield.restore) == text


def test_running_out_of_private_use_characters_is_an_error() -> None:
    with pytest.raises(UsageError, match="every private-use character"):
        Shield(["<a>"], ["".join(map(chr, range(0xF0000, 0xFFFFE)))])


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ range.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% set x = messages[0].pop('role') %}",
        "{{ '%s' % messages }}",
        "{{ 'a' * 1000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ 10 ** 1000000 }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ '{:>1000000000}'.format('a') }}",
        "{{ '{0.__class__}'.format_map(messages[0]) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ messages | attr('__class__') }}",
        "{{ lipsum(n=1000000) }}",
        "{{ range(10000000) | list }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'a' %}",
        "{{ messages | tojson(ensure_ascii=true) }}",
        "{{ messages | tojson(indent=100000) }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(tiny: Tokenizer, template: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    with pytest.raises(SpecError, match=r"text\.chat\.template: line \d+ of the template: ") as caught:
        prompt = chat_of(tiny, template).render(messages)
        pytest.fail(f"rendered {prompt.text[:80]!r}")
    assert "\n" not in str(caught.value) and messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}",
        "{% macro m() %}{% for i in range(1000) %}aaaaa{% endfor %}{% endmacro %}{{ m() }}",
    ],
)
def test_long_output_is_refused(tiny: Tokenizer, template: str) -> None:
    chat = chat_of(tiny, template, limits={"characters": 1000, "seconds": 10.0})
    with pytest.raises(UsageError, match="longer than 1000 characters"):
        chat.render([{"role": "user", "content": "Hi!"}])


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in messages[0].content %}{% set x = j.a %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}a{% for j in range(10000) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_slow_template_is_stopped(tiny: Tokenizer, template: str) -> None:
    chat = chat_of(tiny, template, limits={"characters": 1_000_000, "seconds": 0.05})
    with pytest.raises(UsageError, match=r"ran for more than 0\.05 s"):
        chat.render([{"role": "user", "content": "a" * 1000}])


def test_one_format_serves_several_threads(chat: ChatFormat) -> None:
    results: dict[str, str] = {}

    def work(name: str) -> None:
        results[name] = chat.render([{"role": "user", "content": name}] * 20).text

    threads = [threading.Thread(target=work, args=(f"user{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[f"user{i}"].count(f"user{i}") == 20 for i in range(8))


def test_a_template_may_refuse_messages(tiny: Tokenizer) -> None:
    with pytest.raises(UsageError, match="refuses the messages: no system turn"):
        chat_of(tiny, "{{ raise_exception('no system turn') }}").render([{"role": "user", "content": "a"}])


def test_mistakes_in_a_template_file_name_file_and_line(tiny: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "bad.jinja"
    spec = tiny_spec(template_file="bad.jinja")
    with pytest.raises(SpecError, match=r"text\.chat\.template_file: cannot read .*bad\.jinja"):
        ChatFormat(spec, tiny, tmp_path)
    path.write_bytes(b"\xff")
    with pytest.raises(SpecError, match="cannot read"):
        ChatFormat(spec, tiny, tmp_path)
    path.write_text("a\n{% if %}")
    with pytest.raises(SpecError, match=r"bad\.jinja:2:1: chat template: Expected an expression"):
        ChatFormat(spec, tiny, tmp_path)
    path.write_text("a\n{% for m in messages %}{% break %}{% endfor %}")
    with pytest.raises(SpecError, match=r"bad\.jinja:2:1: chat template: Encountered unknown tag 'break'"):
        ChatFormat(spec, tiny, tmp_path)
    path.write_text("a\n{% for m in messages %}\n{{ m.content + 1 }}{% endfor %}")
    with pytest.raises(SpecError, match=r"bad\.jinja:3:1: chat template: TypeError: "):
        ChatFormat(spec, tiny, tmp_path).render([{"role": "user", "content": "a"}])
