"""Common parts of the dialects that answer with vectors or scores: inputs, replies, activations of scores."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.client_text import shortened
from headrace.core.errors import EngineFailed, Internal, InvalidRequest
from headrace.core.generation import GenerationRequest, Pooled, PoolingInfo, PoolingParams
from headrace.serving.wire.answers import Answer
from headrace.serving.wire.dialect import JsonHead, ParsedRequest, RequestContext, StreamRenderer

MAX_INPUTS = 2048
"""Inputs of one HTTP request. Source: OpenAI API reference, create embeddings."""

Input = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WholeReply(JsonHead):
    """Renders the response to a request whose answer is never streamed, such as vectors and scores."""

    body: Callable[[Sequence[Answer]], bytes]

    def stream(self) -> StreamRenderer:
        """Raise: no parser asks this reply for a stream."""
        raise Internal("This answer is not streamed.")

    def render(self, answers: Sequence[Answer]) -> bytes:
        return self.body(answers)


def parsed_pooling(
    inputs: Sequence[Input],
    params: PoolingParams | Sequence[PoolingParams],
    context: RequestContext,
    body: Callable[[Sequence[Answer]], bytes],
    ignored: tuple[str, ...] = (),
    *,
    adapter: str | None = None,
) -> ParsedRequest:
    """Return one request per input, with its own parameters or the same for all, and the reply."""
    each = [params] * len(inputs) if isinstance(params, PoolingParams) else params
    requests = tuple(
        GenerationRequest(
            request_id=context.request_id if len(inputs) == 1 else f"{context.request_id}-{number}",
            prompt=text,
            pooling=own,
            adapter=adapter,
        )
        for number, (text, own) in enumerate(zip(inputs, each, strict=True))
    )
    return ParsedRequest(requests=requests, stream=False, reply=WholeReply(body), ignored=ignored)


def with_prompt(inputs: Sequence[Input], name: str | None, info: PoolingInfo | None) -> list[Input]:
    """Return the inputs with the named or default prompt before each text. Raises `InvalidRequest`: there is none."""
    if info is None:
        return list(inputs)
    if name is not None and name not in info.prompts:
        known = ", ".join(sorted(info.prompts)) or "none"
        raise InvalidRequest(
            f"`prompt_name` is {shortened(name)!r}; expected a prompt of this model: {known}.", param="prompt_name"
        )
    prompt = info.default_prompt if name is None else info.prompts[name]
    return [f"{prompt}{text}" if isinstance(text, str) else text for text in inputs]


def pooled_of(answer: Answer) -> Pooled:
    pooled = answer.choices[0].pooled
    if pooled is None:
        raise EngineFailed("The engine returned text instead of a vector.")
    return pooled


def vector_of(answer: Answer) -> list[float]:
    return pooled_of(answer).vectors()[0]


def activated(scores: Sequence[float]) -> list[float]:
    """Return probabilities: the sigmoid of a single score, the softmax of several."""
    return sigmoid(scores) if len(scores) == 1 else softmax(scores)


def sigmoid(scores: Sequence[float]) -> list[float]:
    """Return independent probabilities."""
    return [0.5 * math.tanh(0.5 * score) + 0.5 for score in scores]


def softmax(scores: Sequence[float]) -> list[float]:
    """Return probabilities that add up to 1."""
    largest = max(scores)
    powers = [math.exp(score - largest) for score in scores]
    return [power / sum(powers) for power in powers]
