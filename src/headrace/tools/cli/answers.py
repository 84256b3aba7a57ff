"""Collect chunks to whole answers, split into reasoning and content, and convert answers to JSON values."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

from headrace.core.answer_format.formats import AnswerFormat
from headrace.core.answer_format.parser import AnswerParser, CallOpening, ContentText, Part, ReasoningText, make_parser
from headrace.core.errors import ContextTooLong, EngineFailed
from headrace.core.generation import Chunk, Finish, FinishReason, GenerationRequest, Token
from headrace.tools.cli.sources import Source
from headrace.tools.cli.tables import count_of


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


CONTINUES_TEXT = "is a base model, without a chat template: it continues the text."
"""The message about a base model, after its name."""
OnChunk = Callable[[Chunk, Sequence[Part]], None]
"""Receives each chunk with the parts that it completes."""


async def collect(source: Source, request: GenerationRequest, on_chunk: OnChunk | None = None) -> list[Answer]:
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


async def _collect(source: Source, request: GenerationRequest, on_chunk: OnChunk | None) -> list[Answer]:
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
    if len(values) == 1:
        return values[0]
    return {"choices": values}


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
