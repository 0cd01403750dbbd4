"""Text generation: prompts in, text and statistics out."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree.errors import UsageError
from ddtree.graph.model import Model
from ddtree.runtime.accept_trace import AcceptTrace
from ddtree.runtime.decoder import Decoder, Round, Sampling
from ddtree.runtime.text import ChatFormat, TextStream, Tokenizer


@dataclass(frozen=True)
class Request:
    """What to generate. stop_strings come on top of the YAML's; ignore_stops decodes past stop ids. trace: what the
    decoder's accepted lengths come from, for the outputs to say so."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_strings: tuple[str, ...] = ()
    ignore_stops: bool = False
    trace: AcceptTrace | None = None


@dataclass
class Result:
    """What was generated so far.

    output_ids       without the prompt; a stop id is included. The first comes from prefill and belongs to no round
    accept_lengths   per round: accepted drafts + bonus, not clipped by the token limit or a stop; empty without a draft
    prefill_seconds  from the start to the first token     decode_seconds  from there on
    """

    request: Request
    output_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    rounds: list[Round] = field(default_factory=list)
    accept_lengths: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def stats(self) -> dict[str, Any]:
        """Figures of the run; seconds, and tokens per second."""
        prompt, new, rounds = len(self.request.prompt_ids), len(self.output_ids), len(self.rounds)
        phases = (
            {name: sum(r.seconds[name] for r in self.rounds) for name in ("draft", "verify", "commit")}
            if rounds
            else {}
        )
        return {
            "prompt_tokens": prompt,
            "output_tokens": new,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "prompt_tokens_per_second": prompt / self.prefill_seconds if self.prefill_seconds else 0.0,
            "output_tokens_per_second": (new - 1) / self.decode_seconds if self.decode_seconds and new > 1 else 0.0,
            "mean_accept_length": sum(self.accept_lengths) / len(self.accept_lengths) if self.accept_lengths else 1.0,
            "drafting_rounds": sum(r.choice is None or r.choice.draft for r in self.rounds)
            if self.accept_lengths
            else 0,
            "verified_rows_per_round": sum(len(r.tree) for r in self.rounds) / rounds if rounds else 0.0,
            "seconds_per_round": sum(phases.values()) / rounds if rounds else 0.0,
            "phase_seconds": phases,
        }

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "prompt_ids": list(self.request.prompt_ids),
            "output_ids": self.output_ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "rounds": len(self.accept_lengths),
            "accept_lengths": self.accept_lengths,
            **({"accept_trace": self.request.trace.label} if self.request.trace else {}),
            "stats": self.stats(),
        }


class Engine:
    """A loaded model with its text side."""

    def __init__(self, model: Model, decoder: Decoder, tokenizer: Tokenizer) -> None:
        self.model, self.decoder, self.tokenizer = model, decoder, tokenizer
        self.stop_ids = tuple(model.target.spec.decode.stop.ids)
        self.stop_strings = tuple(model.target.spec.decode.stop.strings)
        if tokenizer.vocab > decoder.vocab:
            raise UsageError(f"the tokenizer has {tokenizer.vocab} tokens, the model only {decoder.vocab}")

    def chat_format(self) -> ChatFormat:
        """The chat template of the YAML. Raises UsageError when it has none."""
        spec = self.model.target.spec.text
        if spec.chat is None:
            raise UsageError(f"{self.model.target.doc.file} has no chat template (text.chat)")
        return ChatFormat(spec, self.tokenizer, self.model.target.folder)

    def room(self, prompt: Sequence[int]) -> int:
        """Tokens that still fit the context after a prompt."""
        return self.decoder.context - len(prompt)

    def generate(
        self, request: Request, on_round: Callable[[Round], None] | None = None
    ) -> Generator[tuple[str, Result], None, None]:
        """Generate; yields each new piece of text with the result so far, last a piece that may be empty.

        Closing the generator early gives the sequence's memory back; the result then holds what was done.
        """
        result = Result(request)
        stops = () if request.ignore_stops else self.stop_ids
        stream = TextStream(
            self.tokenizer, stops, (*self.stop_strings, *request.stop_strings), max_tokens=max(1, request.max_tokens)
        )
        clock = time.perf_counter()
        slot, token = self.decoder.start(request.prompt_ids, request.sampling, request.max_tokens)
        try:
            result.prefill_seconds = time.perf_counter() - clock
            clock = time.perf_counter()
            produced = [token]
            yield self._take(stream, result, [token], produced), result
            while not stream.stopped:
                done = self.decoder.round()[slot]
                result.decode_seconds = time.perf_counter() - clock
                result.rounds.append(done)
                if self.decoder.limits.block:
                    result.accept_lengths.append(len(done.emitted))
                if on_round:
                    on_round(done)
                produced += done.emitted
                yield self._take(stream, result, done.emitted, produced), result
            tail = stream.finish()
            result.text += tail
            result.finish_reason = str(stream.finish_reason)
            yield tail, result
        finally:
            self.decoder.end(slot)

    @staticmethod
    def _take(stream: TextStream, result: Result, ids: list[int], produced: list[int]) -> str:
        piece = stream.push(ids)
        result.text += piece
        result.output_ids = produced[: stream.kept]
        return piece
