"""Collect chunks to whole answers, and convert answers to JSON values."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.core.errors import EngineFailed
from headrace.core.generation import Chunk, Finish, FinishReason, Token


@dataclass(slots=True)
class Answer:
    """A complete choice of a generation."""

    index: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    prompt: tuple[Token, ...] | None = None
    finish: Finish | None = None


async def collect(chunks: AsyncIterator[Chunk], on_chunk: Callable[[Chunk], None] | None = None) -> list[Answer]:
    """
    Read a stream to its end and return its answers by index.

    Raises:
        EngineFailed: an answer ended with an error.
    """
    answers: dict[int, Answer] = {}
    async for chunk in chunks:
        if on_chunk is not None:
            on_chunk(chunk)
        answer = answers.setdefault(chunk.index, Answer(index=chunk.index))
        answer.text += chunk.text
        answer.tokens.extend(chunk.tokens)
        answer.prompt = chunk.prompt or answer.prompt
        answer.finish = chunk.finish or answer.finish
        if chunk.finish is not None and chunk.finish.reason is FinishReason.ERROR:
            raise EngineFailed(chunk.finish.message or "The engine failed during the answer.")
    return [answers[index] for index in sorted(answers)]


def answer_values(answers: list[Answer]) -> dict[str, Any]:
    """Convert answers to a JSON object: a flat one, or `choices` if there are several."""
    values = [_values(answer) for answer in answers]
    if len(values) == 1:
        return values[0]
    return {"choices": values}


def _values(answer: Answer) -> dict[str, Any]:
    values: dict[str, Any] = {"text": answer.text}
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
