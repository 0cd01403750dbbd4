"""A chat to the token ids of its prompt."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from ddtree.errors import SpecError, UsageError
from ddtree.graph.text_spec import ChatSpec, TextSpec
from ddtree.runtime.text.declaration import typescript_declaration
from ddtree.runtime.text.messages import check_messages, check_tools
from ddtree.runtime.text.sandbox import ChatEnvironment
from ddtree.runtime.text.shield import Shield, strings
from ddtree.runtime.text.tokenizer import Tokenizer

_TEMPLATE_FRAME = "<template>"  # the file name that Jinja gives to frames of a template made from a string


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered chat.

    ids           token ids of the prompt
    text          what the template wrote, for people: a special token and its name in a message look alike here
    in_reasoning  whether the prompt ends inside the reasoning, so that the output starts there
    """

    ids: list[int]
    text: str
    in_reasoning: bool


class ChatFormat:
    """Renders chats with the template of the YAML.

    Only the template's own text can write special tokens. Messages, tools and flags are data: the name of a special
    token in them is encoded as plain text (see `Shield`).

    spec       section `text:`, with a `chat:` part
    tokenizer  built from the same section
    folder     where a `template_file` lies: the YAML's folder

    Raises SpecError for a template that is missing or does not parse.
    """

    def __init__(self, spec: TextSpec, tokenizer: Tokenizer, folder: Path) -> None:
        if spec.chat is None:
            raise UsageError("this model has no chat format (text.chat); use a raw completion")
        self._chat = spec.chat
        self._bos = spec.bos.token if spec.bos else ""
        self._tokenizer = tokenizer
        self._file = str(folder / spec.chat.template_file) if spec.chat.template_file else ""
        self._source = _template_source(spec.chat, folder)
        self._environment = ChatEnvironment(spec.chat.limits)
        try:
            self._template = self._environment.from_string(self._source)
        except TemplateSyntaxError as error:
            raise self._template_error(str(error.message), error.lineno) from None
        except (TemplateError, ArithmeticError, TypeError, ValueError) as error:
            raise self._template_error(str(error)) from None

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        flags: Mapping[str, bool | int | str] | None = None,
        generation_prompt: bool = True,
    ) -> ChatPrompt:
        """The prompt that continues a chat.

        messages           as in the OpenAI API (see `check_messages`)
        tools              as in the OpenAI API: `{"type": "function", "function": {...}}`
        flags              values for the flags of `text.chat.flags` that differ from their defaults
        generation_prompt  whether the prompt opens the assistant's next turn

        Raises UsageError for messages, tools or flags that do not fit, SpecError when the template fails.
        """
        data: dict[str, Any] = {"messages": check_messages(messages, self._chat), "tools": None}
        data |= self._flags(flags or {})
        if tools:
            data |= self._tools(tools)
        texts = [self._source, *strings(data)]
        shield = Shield(self._tokenizer.special, texts)
        variables = shield.protect(data) | {"add_generation_prompt": generation_prompt, "bos_token": self._bos}
        text = self._run(variables)
        ids = self._tokenizer.encode_markup(text, shield.restore)
        return ChatPrompt(ids, text.translate(shield.restore), self._ends_in_reasoning(ids))

    def _run(self, variables: dict[str, Any]) -> str:
        try:
            return self._environment.render(self._template, variables)
        except UsageError:
            raise
        except Exception as error:  # a template may fail in any way that Python can
            frames = traceback.extract_tb(error.__traceback__)
            line = next((frame.lineno for frame in reversed(frames) if frame.filename == _TEMPLATE_FRAME), None)
            raise self._template_error(f"{type(error).__name__}: {error}", line or 1) from error

    def _flags(self, given: Mapping[str, bool | int | str]) -> dict[str, bool | int | str]:
        for name, value in given.items():
            if name not in self._chat.flags:
                known = ", ".join(self._chat.flags) or "none"
                raise UsageError(f"the chat template has no flag {name!r}; flags: {known}")
            default = self._chat.flags[name]
            if type(value) is not type(default):
                raise UsageError(f"flag {name} must be of type {type(default).__name__}; found {value!r}")
        return self._chat.flags | dict(given)

    def _tools(self, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        spec = self._chat.tools
        if spec is None:
            raise UsageError("this model has no format for tools (text.chat.tools)")
        checked = check_tools(tools, sort_keys=spec.sort_keys)
        declaration = None
        if spec.declaration == "typescript":
            try:
                declaration = typescript_declaration(checked)
            except (ValueError, TypeError, KeyError, AttributeError):
                declaration = None  # JSON schema allows more than the types can say; the template falls back to JSON
        return {"tools": checked, spec.variable: declaration}

    def _ends_in_reasoning(self, ids: list[int]) -> bool:
        reasoning = self._chat.reasoning
        if reasoning is None:
            return False
        opened = self._tokenizer.special[reasoning.open]
        closed = {self._tokenizer.special[name] for name in (reasoning.close, *reasoning.implicit_close)}
        return next((id_ == opened for id_ in reversed(ids) if id_ == opened or id_ in closed), False)

    def _template_error(self, message: str, line: int = 1) -> SpecError:
        if self._file:
            return SpecError(f"chat template: {message}", file=self._file, line=line, column=1)
        return SpecError(f"line {line} of the template: {message}", path="text.chat.template")


def _template_source(chat: ChatSpec, folder: Path) -> str:
    if chat.template_file is None:
        return chat.template or ""
    path = folder / chat.template_file
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {path}: {error}", path="text.chat.template_file") from None
