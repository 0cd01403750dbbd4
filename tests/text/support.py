"""The specs and rank files that the text tests share."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from ddtree.graph.text_spec import TextSpec
from ddtree.runtime.text import ChatFormat, Tokenizer

MODELS = Path(__file__).parents[2] / "models"
TINY = MODELS / "kimi_tiny"

_UPPER, _LOWER = (
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
)
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = [
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
]

CHAT: dict[str, Any] = {
    "template_file": "kimi_chat.jinja",
    "flags": {"thinking": True, "preserve_thinking": False},
    "roles": ["system", "user", "assistant", "tool", "tool_declare"],
    "content_parts": ["text", "image", "image_url"],
    "reasoning": {"open": "<think>", "close": "</think>", "implicit_close": ["<|tool_calls_section_begin|>"]},
    "tools": {
        "declaration": "typescript",
        "variable": "tools_ts_str",
        "sort_keys": True,
        "call_id": "functions.{name}:{index}",
        "section_begin": "<|tool_calls_section_begin|>",
        "section_end": "<|tool_calls_section_end|>",
        "call_begin": "<|tool_call_begin|>",
        "argument_begin": "<|tool_call_argument_begin|>",
        "call_end": "<|tool_call_end|>",
    },
    "limits": {"characters": 1_000_000, "seconds": 10.0},
}


def published_special() -> dict[str, int]:
    """The special tokens of kimi-tiny as its own tokenizer_config.json names them."""
    config = json.loads((TINY / "tokenizer_config.json").read_text())
    return {entry["content"]: int(id_) for id_, entry in config["added_tokens_decoder"].items()}


def tiny_section(**chat: Any) -> dict[str, Any]:
    """The YAML section of kimi-tiny as Python data; keywords replace entries of `chat`."""
    return {
        "tokenizer": {
            "kind": "tiktoken",
            "ranks": "tiktoken.model",
            "base_tokens": 3840,
            "special_slots": 256,
            "special": published_special(),
            "unnamed": "<|reserved_token_{id}|>",
            "pattern": PATTERN,
            "limits": {"characters": 400_000, "run": 25_000},
        },
        "bos": {"token": "[BOS]", "completion": True},
        "chat": CHAT | chat,
    }


def tiny_spec(**chat: Any) -> TextSpec:
    return TextSpec.model_validate(tiny_section(**chat))


def chat_of(tokenizer: Tokenizer, template: str, **chat: Any) -> ChatFormat:
    """A chat format with another template, on kimi-tiny's tokenizer."""
    return ChatFormat(tiny_spec(template=template, template_file=None, **chat), tokenizer, MODELS)


def write_ranks(path: Path, words: list[bytes]) -> int:
    """A rank file of all bytes followed by `words`; returns the number of tokens."""
    tokens = [bytes([byte]) for byte in range(256)] + words
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return len(tokens)


def own_tokenizer(
    folder: Path, words: list[bytes], special: dict[str, int] | None = None, **tokenizer: Any
) -> Tokenizer:
    """A tokenizer whose vocabulary is all bytes, then `words`, then 4 special slots."""
    base = write_ranks(folder / "own.model", words)
    section = {
        "kind": "tiktoken",
        "ranks": "own.model",
        "base_tokens": base,
        "special_slots": 4,
        "special": special or {},
        "unnamed": "<{id}>",
        "pattern": PATTERN,
        "limits": {"characters": 400_000, "run": 25_000},
    }
    return Tokenizer(TextSpec.model_validate({"tokenizer": section | tokenizer}), folder)
