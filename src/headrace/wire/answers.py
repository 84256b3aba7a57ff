"""Chunks gathered into whole answers; the one place that knows how chunks add up."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.core.errors import EngineFailed, HeadraceError, InvalidRequest, RequestAborted
from headrace.core.generation import Chunk, Finish, FinishReason, GenerationRequest, Token

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say. Source: vLLM clamps at the same value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished choice."""

    index: int
    text: str
    tokens: tuple[Token, ...]
    finish: Finish

    @property
    def mean_logprob(self) -> float:
        """How likely the model found it, per token; minus infinity when no logprobs were asked for."""
        logprobs = [token.logprob for token in self.tokens if token.logprob is not None]
        return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All choices of one request, by index."""

    choices: tuple[Choice, ...]
    prompt: tuple[Token, ...] | None = None

    def best_first(self) -> tuple[Choice, ...]:
        """The choice with the best mean logprob, then the others in their order."""
        best = max(self.choices, key=lambda choice: choice.mean_logprob)
        return (best, *(choice for choice in self.choices if choice is not best))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that were read and written."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Gathering:
    """A choice on its way."""

    texts: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk of this choice."""
        self.texts.append(chunk.text)
        self.tokens.extend(chunk.tokens)
        self.finish = chunk.finish or self.finish

    @property
    def text(self) -> str:
        """What has come so far."""
        return "".join(self.texts)


def failure_of(finish: Finish | None) -> HeadraceError | None:
    """The error that a choice ended with, if it did."""
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
    """A logprob that JSON can say."""
    if logprob is None:
        return None
    return max(LOWEST_LOGPROB, logprob)


class Collector:
    """Gathers the chunks of one HTTP request, which may stand for several generation requests."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self._choices: list[dict[int, Gathering]] = [{} for _ in requests]
        self._prompts: list[tuple[Token, ...] | None] = [None for _ in requests]

    def add(self, chunk: Chunk, *, request: int = 0) -> None:
        """Take the next chunk of request number `request`."""
        self._choices[request].setdefault(chunk.index, Gathering()).add(chunk)
        if chunk.prompt is not None:
            self._prompts[request] = chunk.prompt

    def answers(self) -> tuple[Answer, ...]:
        """
        One answer for each request, when all have finished.

        Raises:
            EngineFailed: a choice ended with an error, or never ended.
            RequestAborted: a choice was aborted.
        """
        return tuple(
            Answer(choices=_finished(choices), prompt=prompt)
            for choices, prompt in zip(self._choices, self._prompts, strict=True)
        )


def _finished(choices: dict[int, Gathering]) -> tuple[Choice, ...]:
    if not choices:
        raise EngineFailed("The engine gave no answer. Try again.")
    return tuple(_choice(index, choices[index]) for index in sorted(choices))


def _choice(index: int, gathering: Gathering) -> Choice:
    failure = failure_of(gathering.finish)
    if failure is not None:
        raise failure
    if gathering.finish is None:
        raise EngineFailed("The answer stopped before its end. Try again.")
    return Choice(index=index, text=gathering.text, tokens=tuple(gathering.tokens), finish=gathering.finish)


def usage_of(answers: Sequence[Answer]) -> Usage:
    """Prompt tokens count once for each request, output tokens for each choice."""
    firsts = [answer.choices[0].finish for answer in answers]
    return Usage(
        prompt_tokens=sum(finish.prompt_tokens for finish in firsts),
        output_tokens=sum(choice.finish.output_tokens for answer in answers for choice in answer.choices),
        cached_tokens=sum(finish.cached_tokens for finish in firsts),
    )
