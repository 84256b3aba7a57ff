"""Collection of chunks into whole answers."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from headrace.core.errors import EngineFailed, HeadraceError, InvalidRequest, RequestAborted
from headrace.core.generation import Chunk, Finish, FinishReason, GenerationRequest, Pooled, Token

LOWEST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON cannot represent. Source: vLLM clamps at the same value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedChoice:
    """A finished choice: its text, tokens and finish."""

    index: int
    text: str
    tokens: tuple[Token, ...]
    finish: Finish
    pooled: Pooled | None = None
    opening: str = ""
    """See `Chunk.opening`."""
    prompt_ids: tuple[int, ...] | None = None
    """See `Chunk.prompt_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The finished choices of one generation request, by index."""

    choices: tuple[FinishedChoice, ...]
    prompt: tuple[Token, ...] | None = None

    def best_first(self) -> tuple[FinishedChoice, ...]:
        """Return the choice with the best mean logprob first, then the others in their order."""

        def mean_logprob(choice: FinishedChoice) -> float:
            logprobs = [token.logprob for token in choice.tokens if token.logprob is not None]
            return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf

        best = max(self.choices, key=mean_logprob)
        return (best, *(choice for choice in self.choices if choice is not best))


def num_logprobs(answers: Iterable[Answer]) -> int:
    """Return the number of logprobs: of tokens and of their alternatives."""
    texts = (tokens for answer in answers for tokens in (answer.prompt or (), *(c.tokens for c in answer.choices)))
    return sum(1 + len(token.top) for tokens in texts for token in tokens if token.logprob is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one HTTP request."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None
    """Output tokens that are reasoning; None: not counted separately."""


def failure_of(finish: Finish | None) -> HeadraceError | None:
    """Return the error that a choice ended with, or None."""
    if finish is None:
        return None
    if finish.reason is FinishReason.ERROR and finish.param is not None and finish.message is not None:
        return InvalidRequest(finish.message, param=finish.param)
    if finish.reason is FinishReason.ERROR:
        return EngineFailed(finish.message or "The engine failed in the middle of the answer. Try again.")
    if finish.reason is FinishReason.ABORT:
        return RequestAborted(finish.message or "The request was aborted before the answer was complete.")
    return None


def finite_logprob(logprob: float | None) -> float | None:
    """Return a logprob that JSON can represent."""
    return None if logprob is None else max(LOWEST_LOGPROB, logprob)


class Collector:
    """Collects the chunks of one HTTP request, which may have several generation requests."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self._choices: list[dict[int, list[Chunk]]] = [{} for _ in requests]
        """The chunks of each request's choices."""
        self._prompts: list[tuple[Token, ...] | None] = [None for _ in requests]

    def add(self, chunk: Chunk, *, request: int = 0) -> None:
        self._choices[request].setdefault(chunk.index, []).append(chunk)
        if chunk.prompt is not None:
            self._prompts[request] = chunk.prompt

    def answers(self) -> tuple[Answer, ...]:
        """Return an answer per request. Raises `EngineFailed` or `RequestAborted` if a choice failed or never ended."""
        return tuple(
            Answer(choices=tuple(_finished(choices)), prompt=prompt)
            for choices, prompt in zip(self._choices, self._prompts, strict=True)
        )


def _finished(choices: dict[int, list[Chunk]]) -> Iterator[FinishedChoice]:
    if not choices:
        raise EngineFailed("The engine returned no answer. Try again.")
    for index in sorted(choices):
        chunks = choices[index]
        finish = next((chunk.finish for chunk in reversed(chunks) if chunk.finish), None)
        if (failure := failure_of(finish)) is not None:
            raise failure
        if finish is None:
            raise EngineFailed("The answer stopped before its end. Try again.")
        yield FinishedChoice(
            index=index,
            text="".join(chunk.text for chunk in chunks),
            tokens=tuple(chain.from_iterable(chunk.tokens for chunk in chunks)),
            finish=finish,
            pooled=next((chunk.pooled for chunk in reversed(chunks) if chunk.pooled), None),
            opening=next((chunk.opening for chunk in reversed(chunks) if chunk.opening), ""),
            prompt_ids=next((chunk.prompt_ids for chunk in chunks if chunk.prompt_ids is not None), None),
        )


def usage_of(answers: Sequence[Answer]) -> Usage:
    """Return the token counts: prompt tokens once per request, output tokens per choice."""
    firsts = [answer.choices[0].finish for answer in answers]
    return Usage(
        prompt_tokens=sum(finish.prompt_tokens for finish in firsts),
        output_tokens=sum(choice.finish.output_tokens for answer in answers for choice in answer.choices),
        cached_tokens=sum(finish.cached_tokens for finish in firsts),
    )
