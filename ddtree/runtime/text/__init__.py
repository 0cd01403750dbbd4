"""Text in and out of a model: tokenizer, chat prompts, streamed output."""

from ddtree.runtime.text.chat import ChatFormat, ChatPrompt
from ddtree.runtime.text.stream import FinishReason, TextStream
from ddtree.runtime.text.tokenizer import Tokenizer

__all__ = ["ChatFormat", "ChatPrompt", "FinishReason", "TextStream", "Tokenizer"]
