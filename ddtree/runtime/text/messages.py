"""The messages of a chat, as in the OpenAI API, checked before a template sees them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from ddtree.errors import UsageError
from ddtree.graph.text_spec import ChatSpec

_MAX_DEPTH = 64


def check_messages(messages: Sequence[dict[str, Any]], chat: ChatSpec) -> list[dict[str, Any]]:
    """The messages, with an id for every tool call that has none.

    A message has `role` and `content` (text, or a list of parts); an assistant's may have `reasoning` or
    `reasoning_content` and `tool_calls`; a tool's has `tool_call_id`. Raises UsageError, naming the message.
    """
    if not messages:
        raise UsageError("the chat has no messages")
    calls = count()
    return [_message(message, f"messages[{place}]", chat, calls) for place, message in enumerate(messages)]


def check_tools(tools: Sequence[dict[str, Any]], *, sort_keys: bool) -> list[dict[str, Any]]:
    """The tools, objects sorted by key where the model expects it. Raises UsageError, naming the tool."""
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        _require(isinstance(tool, dict) and isinstance(tool.get("type"), str), where, "must be an object with a type")
        check_depth(tool, where)
        if tool["type"] == "function":
            function = _function(tool, where)
            _require(_is_text(function.get("name")), where, "function.name must be text")
            _require(isinstance(function.get("parameters") or {}, dict), where, "function.parameters must be an object")
    return [_sorted(tool) for tool in tools] if sort_keys else list(tools)


def check_depth(value: Any, where: str, depth: int = 0) -> None:
    """UsageError when JSON-like data is nested too deep to be walked."""
    _require(depth <= _MAX_DEPTH, where, f"is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            check_depth(item, where, depth + 1)


def _message(message: Any, where: str, chat: ChatSpec, calls: count[int]) -> dict[str, Any]:
    _require(isinstance(message, dict), where, "must be an object")
    check_depth(message, where)
    role = message.get("role")
    _require(role in chat.roles, where, f"role must be one of {', '.join(chat.roles)}; found {role!r}")
    for key in ("name", "reasoning", "reasoning_content"):
        _require(message.get(key) is None or isinstance(message[key], str), where, f"{key} must be text")
    _content(message, where, chat)
    if role == "tool":
        _require(_is_text(message.get("tool_call_id")), where, "tool_call_id must name the call that it answers")
    if not message.get("tool_calls"):
        return message
    _require(role == "assistant", where, "only an assistant makes tool calls")
    _require(isinstance(message["tool_calls"], list), where, "tool_calls must be a list")
    made = [
        _tool_call(call, f"{where}.tool_calls[{place}]", chat, next(calls))
        for place, call in enumerate(message["tool_calls"])
    ]
    return message | {"tool_calls": made}


def _content(message: dict[str, Any], where: str, chat: ChatSpec) -> None:
    content = message.get("content")
    if content is None:
        _require(message["role"] == "assistant", where, "needs content")
    elif isinstance(content, list):
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            allowed = ", ".join(chat.content_parts)
            _require(kind in chat.content_parts, where, f"this model takes parts of type {allowed}; found {kind!r}")
            _require(kind != "text" or isinstance(part.get("text"), str), where, "a text part needs text")
    else:
        _require(isinstance(content, str), where, "content must be text or a list of parts")


def _tool_call(call: Any, where: str, chat: ChatSpec, number: int) -> dict[str, Any]:
    if chat.tools is None:
        raise UsageError(f"{where}: this model has no format for tool calls (text.chat.tools)")
    function = _function(call, where)
    _require(_is_text(function.get("name")), where, "function.name must be text")
    arguments = function.get("arguments")
    _require(isinstance(arguments, str | dict), where, "function.arguments must be JSON text or an object")
    written = chat.tools.call_id.replace("{index}", str(number)).replace("{name}", function["name"])
    name = call.get("id")
    _require(name is None or _is_text(name), where, "id must be text")
    return call | {"id": name or written}


def _function(owner: Any, where: str) -> dict[str, Any]:
    function = owner.get("function") if isinstance(owner, dict) else None
    if not isinstance(function, dict):
        raise UsageError(f"{where}: must have an object `function`")
    return function


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _require(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise UsageError(f"{where}: {message}")


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value
