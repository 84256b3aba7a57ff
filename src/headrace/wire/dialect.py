"""
What a dialect is: bytes to `GenerationRequest`s, and `Chunk`s back to bytes.

The server finds a dialect (`wire.registry`), lets it `parse` a body, runs the requests, and gives every chunk to the
`StreamRenderer` or collects them (`wire.answers.Collector`) for `Reply.render`. All of it is pure: no I/O, no clock.

    dialect = select_dialect(body, configured)            # only on /invocations
    try:
        parsed = dialect.parse(body, context)
    except HeadraceError as error:
        return dialect.render_error(error)

    if parsed.stream:                                     # one renderer for all of parsed.requests
        renderer = parsed.reply.stream()
        ... renderer.chunk(chunk, request=i) for each chunk of request i; at the end renderer.end()
    else:
        collector = Collector(parsed.requests)
        ... collector.add(chunk, request=i)
        return parsed.reply.render(collector.answers())   # raises what went wrong inside the stream
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.core.errors import Busy, HeadraceError
from headrace.core.generation import Chunk, GenerationRequest, ModelInfo, RequestLimits
from headrace.wire.answers import Answer

MAX_CHOICES = 128
"""Choices of one HTTP request: prompts times `n`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What a dialect has to know about the server and this call, besides the body."""

    request_id: str
    """Becomes the id of the generation requests and a part of OpenAI's `id`."""
    created_s: int
    """Now, in seconds since 1970."""
    model: ModelInfo
    limits: RequestLimits
    default_max_new_tokens: int
    """Length of an answer in the TorchServe dialect, where the body is a prompt and nothing else."""
    accepted_models: frozenset[str] | None = None
    """Names that an OpenAI request may call the model by; None: any name will do, as one model is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a finished request went, in seconds, for response headers."""

    total_s: float
    validation_s: float
    queue_s: float
    inference_s: float
    prompt_tokens: int
    output_tokens: int
    compute_type: str = "cpu+optimized"


class StreamRenderer(Protocol):
    """
    Writes one streamed answer.

    Each item of a result is one event, line or fragment. Send each as a piece of its own (some clients take one
    SageMaker `PayloadPart` for one event); none splits a character or a JSON escape.
    """

    keep_alive: bytes
    """Bytes that may be sent between events to keep a connection open; empty where the dialect has none."""

    def chunk(self, chunk: Chunk, *, request: int = 0) -> Sequence[bytes]:
        """Write a chunk of `parsed.requests[request]`. A chunk that ends in failure becomes the error event."""
        ...

    def end(self) -> Sequence[bytes]:
        """What comes after the last chunk. Empty after an error."""
        ...

    def error(self, error: HeadraceError) -> Sequence[bytes]:
        """A well-formed error event that closes the stream: write nothing after it."""
        ...


class Reply(Protocol):
    """How the answer to one parsed request is to be written."""

    @property
    def content_type(self) -> str:
        """Of the stream when the request asked for one, else of the whole body."""
        ...

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        """More response headers. `timings` is None where they must be sent before the answer is known (streams)."""
        ...

    def stream(self) -> StreamRenderer:
        """A fresh renderer, for one stream."""
        ...

    def render(self, answers: Sequence[Answer]) -> bytes:
        """The whole body, from one answer for each of the requests."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request body, understood."""

    requests: tuple[GenerationRequest, ...]
    """More than one when the client sent a list of prompts."""
    stream: bool
    reply: Reply
    ignored: tuple[str, ...] = ()
    """Names of fields that were accepted without any effect, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """An error before the first byte of an answer."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"


class Dialect(Protocol):
    """One request and response schema on the wire."""

    @property
    def name(self) -> str:
        """As in the settings and the log."""
        ...

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Understand a body.

        Raises:
            InvalidRequest: in the dialect's own words; render it with `render_error`.
            NotFound: the model or adapter that is named is not served.
        """
        ...

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Any error of ours in the dialect's form."""
        ...


def retry_headers(error: HeadraceError) -> tuple[tuple[str, str], ...]:
    """`Retry-After` in whole seconds, for an error that says when to come back."""
    if isinstance(error, Busy):
        return (("retry-after", str(max(1, math.ceil(error.retry_after_s)))),)
    return ()
