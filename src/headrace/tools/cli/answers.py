"""Collect streamed answers, show them in a terminal with their figures, and convert them to JSON values."""

import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import click

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.answer_format.parser import AnswerParser, CallOpening, ContentText, Part, ReasoningText, make_parser
from headrace.core.client_text import printable
from headrace.core.errors import ContextTooLong, EngineFailed
from headrace.core.generation import ChatPrompt, Chunk, Finish, FinishReason, GenerationRequest, SamplingParams, Token
from headrace.tools.cli.progress import watching
from headrace.tools.cli.tables import count_of

if TYPE_CHECKING:
    from headrace.tools.cli.sources import Source

CONTINUES_TEXT = "is a base model, without a chat template: it continues the text."
"""The message about a base model, after its name."""


@dataclass(slots=True)
class Answer:
    """A complete choice of a generation."""

    index: int
    answer_format: AnswerFormat | None = None
    """Separates reasoning from content; None: all text is content."""
    text: str = ""
    """Content, and calls as the model wrote them."""
    reasoning: str = ""
    tokens: list[Token] = field(default_factory=list)
    prompt: tuple[Token, ...] | None = None
    finish: Finish | None = None
    _parser: AnswerParser | None = None

    def add(self, chunk: Chunk) -> list[Part]:
        """Add a chunk; return the parts that it completes."""
        parts = self._parts(chunk)
        for part in parts:
            if isinstance(part, ReasoningText):
                self.reasoning += part.text
            else:
                self.text += text_of(part)
        self.tokens.extend(chunk.tokens)
        self.prompt = chunk.prompt or self.prompt
        self.finish = chunk.finish or self.finish
        return parts

    def _parts(self, chunk: Chunk) -> list[Part]:
        if self.answer_format is None:
            return [ContentText(chunk.text)] if chunk.text else []
        if self._parser is None:
            self._parser = make_parser(self.answer_format, chunk.opening)
        parts = self._parser.feed(chunk.text)
        return parts if chunk.finish is None else [*parts, *self._parser.finish()]


def text_of(part: Part) -> str:
    """Return the text of a part; a call is shown as the model wrote it."""
    return part.name if isinstance(part, CallOpening) else part.text


def prompt_request(prompt: str | ChatPrompt, sampling: SamplingParams) -> GenerationRequest:
    """Return the request for a text to continue or for a chat, whose reasoning is separated."""
    separates_reasoning = isinstance(prompt, ChatPrompt)
    return GenerationRequest(
        request_id=uuid4().hex, prompt=prompt, sampling=sampling, separates_reasoning=separates_reasoning
    )


OnChunk = Callable[[Chunk, Sequence[Part]], None]
"""Receives each chunk with the parts that it completes."""


async def collect(source: "Source", request: GenerationRequest, on_chunk: OnChunk | None = None) -> list[Answer]:
    """
    Run a request to its end and return its answers by index.

    Raises:
        EngineFailed: an answer ended with an error.
    """
    try:
        return await _collect(source, request, on_chunk)
    except ContextTooLong:  # the maximum is more than the context has left, which becomes the maximum
        rest = replace(request, sampling=replace(request.sampling, max_new_tokens=None))
        return await _collect(source, rest, on_chunk)


async def collect_shown(
    source: "Source", request: GenerationRequest, watch: "Stopwatch", on_part: Callable[[Part], None] | None = None
) -> list[Answer]:
    """
    Run a request to its end as `collect` does, measure it, and show meanwhile that it waits.

    `on_part` receives the parts as they come; the wait ends with the first one, or without `on_part` with the answer.
    """
    with watching(source.info.name, waiting_for_answer) as end_wait:

        def on_chunk(chunk: Chunk, parts: Sequence[Part]) -> None:
            if on_part is not None:
                end_wait()
            watch.record(chunk)
            if on_part is not None:
                for part in parts:
                    on_part(part)

        return await collect(source, request, on_chunk)


async def _collect(source: "Source", request: GenerationRequest, on_chunk: OnChunk | None) -> list[Answer]:
    answers: dict[int, Answer] = {}
    known = source.info.answer_format if request.separates_reasoning else None
    async with aclosing(cast("AsyncGenerator[Chunk, None]", source.generate(request))) as chunks:
        async for chunk in chunks:
            answer = answers.setdefault(chunk.index, Answer(index=chunk.index, answer_format=known))
            parts = answer.add(chunk)
            if on_chunk is not None:
                on_chunk(chunk, parts)
            if chunk.finish is not None and chunk.finish.reason is FinishReason.ERROR:
                raise EngineFailed(chunk.finish.message or "The engine failed during the answer.")
    return [answers[index] for index in sorted(answers)]


def ending_note(
    finish: Finish | None, *, has_text: bool, has_reasoning: bool, max_new_tokens: int | None, name: str = "The answer"
) -> str | None:
    """Return the note below an answer that was cut or has no text: the reason, and the option that changes it."""
    if finish is None:
        return None
    cut, advice = _cut(finish, max_new_tokens)
    if has_text:
        return f"{name} {cut}. {advice}" if cut else None
    if has_reasoning:
        tokens = count_of(finish.output_tokens, "token")
        return f"{name} ended within its reasoning, after {tokens}. {advice}".rstrip()
    if cut:
        return f"{name} has no text: it {cut}. {advice}"
    if finish.reason is FinishReason.STOP:
        return f"{name} has no text: it began with a stop text."
    return f"{name} has no text: the model ended it at once (finish reason: {finish.reason})."


def _cut(finish: Finish, max_new_tokens: int | None) -> tuple[str, str]:
    """Return how an answer was cut, and the advice; empty if the model or a stop string ended it."""
    if finish.reason is FinishReason.REPETITION:
        text = f"was stopped after {count_of(finish.output_tokens, 'token')}, because it repeated itself"
        return text, "--allow-repetition lets it go on."
    if finish.reason is not FinishReason.LENGTH:
        return "", ""
    if max_new_tokens is not None and finish.output_tokens >= max_new_tokens:
        return f"was cut at {count_of(max_new_tokens, 'token')}", "Raise --max-new-tokens (-n)."
    text = f"was cut after {count_of(finish.output_tokens, 'token')}, because the context is full"
    return text, "Shorten the prompt or the conversation, or raise --max-model-len."


def answer_values(answers: list[Answer]) -> dict[str, Any]:
    """Convert answers to a JSON object: a flat one, or `choices` if there are several."""
    values = [_values(answer) for answer in answers]
    return values[0] if len(values) == 1 else {"choices": values}


def _values(answer: Answer) -> dict[str, Any]:
    values: dict[str, Any] = {"text": answer.text}
    if answer.reasoning:
        values["reasoning"] = answer.reasoning
    if answer.finish is not None:
        values |= {
            "finish_reason": str(answer.finish.reason),
            "prompt_tokens": answer.finish.prompt_tokens,
            "output_tokens": answer.finish.output_tokens,
            "cached_tokens": answer.finish.cached_tokens,
            "seed": answer.finish.seed,
        }
    if any(token.logprob is not None for token in answer.tokens):
        values["tokens"] = [_token(token) for token in answer.tokens]
    if answer.prompt is not None:
        values["prompt"] = [_token(token) for token in answer.prompt]
    return values


def _token(token: Token) -> dict[str, Any]:
    value: dict[str, Any] = {"id": token.id, "text": token.text, "logprob": token.logprob}
    if token.special:
        value["special"] = True
    if token.top:
        value["top"] = [{"id": other.id, "text": other.text, "logprob": other.logprob} for other in token.top]
    return value


def write_text(text: str) -> None:
    """Write a piece of an answer and flush; a file or pipe gets it unchanged."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def waiting_for_answer() -> str | None:
    """Return the status before the first part of an answer; None if stderr is no terminal."""
    return "waiting for the answer" if sys.stderr.isatty() else None


class PartWriter:
    """Writes an answer as it comes: reasoning dimmed on a terminal and left out of files and pipes."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._is_after_reasoning = False

    def write(self, part: Part) -> None:
        """Write a part; content begins on a line of its own after reasoning."""
        if isinstance(part, ReasoningText):
            if self._is_terminal:
                self._is_after_reasoning = True
                sys.stdout.write(click.style(printable(part.text), dim=True))
                sys.stdout.flush()
            return
        write_text(("\n\n" if self._is_after_reasoning else "") + text_of(part))
        self._is_after_reasoning = False


@dataclass(slots=True)
class Stopwatch:
    """Measures the speed of a streaming answer."""

    started_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    last_s: float = 0.0
    num_pieces: int = 0
    finish: Finish | None = None

    def record(self, chunk: Chunk) -> None:
        self.last_s = time.perf_counter()
        if chunk.text or chunk.tokens:
            self.num_pieces += max(1, len(chunk.tokens))
            self.first_s = self.first_s or self.last_s
        self.finish = chunk.finish or self.finish

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer, or its pieces if it was stopped before its finish."""
        return self.finish.output_tokens if self.finish is not None else self.num_pieces

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.started_s

    @property
    def tokens_per_s(self) -> float | None:
        """Speed after the first token; None for fewer than two tokens."""
        if self.first_s is None or self.num_tokens < 2 or self.last_s <= self.first_s:
            return None
        return (self.num_tokens - 1) / (self.last_s - self.first_s)

    def line(self) -> str:
        """Return `12 tokens, 85 tokens/s, first after 40 ms, 30 of 60 prompt tokens from the cache`."""
        parts = [count_of(self.num_tokens, "token")]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:,.0f} tokens/s")
        if self.ttft_s is not None:
            parts.append(f"first after {1000 * self.ttft_s:,.0f} ms")
        if self.finish is not None and self.finish.cached_tokens:
            parts.append(f"{self.finish.cached_tokens} of {self.finish.prompt_tokens} prompt tokens from the cache")
        return ", ".join(parts)
