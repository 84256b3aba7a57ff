"""
The interface of a dialect: parsing bytes into `GenerationRequest`s and rendering `Chunk`s as bytes.

The server selects a dialect (`wire.registry`), calls `parse` on a body, runs the requests, and passes every chunk to
the `StreamRenderer` or to a `wire.answers.Collector` for `Reply.render`. All of it is pure: no I/O, no clock.

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
        return parsed.reply.render(collector.answers())   # raises errors that a chunk carried
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from headrace.core.errors import Busy, HeadraceError
from headrace.core.generation import Chunk, GenerationRequest, ModelInfo, RequestLimits
from headrace.serving.wire.answers import Answer, failure_of
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, SSE_CONTENT_TYPE, UNBUFFERED_HEADERS

MAX_CHOICES = 128
"""Choices of one HTTP request: prompts times `n`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Durations of a request's phases in seconds, for response headers and the last object of a stream."""

    total_s: float = 0.0
    validation_s: float = 0.0
    queue_s: float = 0.0
    first_chunk_s: float = 0.0
    """Until the first chunk of the answer."""
    inference_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    compute_type: str = "cpu+optimized"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """The facts about the server and the request that a dialect needs besides the body."""

    request_id: str
    """The id of the generation requests and a part of OpenAI's `id`."""
    created_s: int
    """The current time in seconds since 1970."""
    model: ModelInfo
    limits: RequestLimits
    default_max_new_tokens: int
    """Length of an answer in the TorchServe dialect, where the body is only a prompt."""
    accepted_models: frozenset[str] | None = None
    """Names of the model that OpenAI requests may use; None: any name, as one model is served."""
    adapters: frozenset[str] = frozenset()
    """Names of adapters, which OpenAI requests may use in `model`."""
    timings: Callable[[], Timings] = field(default=Timings, compare=False)
    """Returns the request's durations up to now, as dialects have no clock."""


class StreamRenderer(Protocol):
    """
    Renderer of one streamed answer as events, lines or fragments.

    Each item of a result is one event, line or fragment. Send each one separately (some clients take one SageMaker
    `PayloadPart` for one event); none splits a character or a JSON escape.
    """

    keep_alive: bytes
    """Bytes to send between events to keep a connection open; empty if the dialect has none."""

    def chunk(self, chunk: Chunk, *, request: int = 0) -> Sequence[bytes]:
        """Render a chunk of `parsed.requests[request]`. A chunk that ends in failure becomes the error event."""

    def end(self) -> Sequence[bytes]:
        """Render what follows the last chunk; empty after an error."""

    def error(self, error: HeadraceError) -> Sequence[bytes]:
        """Render a well-formed error event that ends the stream: send nothing after it."""


class Reply(Protocol):
    """Renders the response to one parsed request."""

    @property
    def content_type(self) -> str:
        """The content type of the stream if the request asked for one, else of the whole body."""

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        """Return additional response headers. `timings` is None if they are sent before the answer is known."""

    def stream(self) -> StreamRenderer:
        """Return a new renderer for one stream."""

    def render(self, answers: Sequence[Answer]) -> bytes:
        """Render the whole body from one answer per generation request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """The generation requests of a parsed body, and how to reply."""

    requests: tuple[GenerationRequest, ...]
    """More than one when the client sent a list of prompts; none when the reply needs no answer of the model."""
    stream: bool
    reply: Reply
    ignored: tuple[str, ...] = ()
    """Names of fields that were accepted without effect, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """The response for an error before the first byte of an answer."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"


class Dialect(Protocol):
    """A request and response schema on the wire."""

    @property
    def name(self) -> str:
        """The dialect's name in the settings and the log."""

    def parse(self, body: bytes, context: RequestContext) -> ParsedRequest:
        """
        Parse a body.

        Raises:
            InvalidRequest: with the dialect's error text; render it with `render_error`.
            NotFound: the named model or adapter is not served.
        """

    def render_error(self, error: HeadraceError) -> ErrorReply:
        """Render an error in the dialect's format."""


def retry_headers(error: HeadraceError) -> tuple[tuple[str, str], ...]:
    """Return `Retry-After` in whole seconds, if the error says when to retry."""
    if isinstance(error, Busy):
        return (("retry-after", str(max(1, math.ceil(error.retry_after_s)))),)
    return ()


class _Options(Protocol):
    @property
    def is_stream(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """The head of a response that is JSON or, on request, a stream, which headers keep proxies from buffering."""

    options: _Options

    stream_type: ClassVar = SSE_CONTENT_TYPE

    @property
    def content_type(self) -> str:
        return self.stream_type if self.options.is_stream else JSON_CONTENT_TYPE

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        del timings
        return UNBUFFERED_HEADERS if self.options.is_stream else ()


class JsonHead:
    """The head of a response that is JSON and has no headers of its own."""

    __slots__ = ()

    content_type = JSON_CONTENT_TYPE

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        del timings
        return ()


class ClosingStream(ABC):
    """A `StreamRenderer` that renders nothing after its end or an error."""

    keep_alive: bytes = b""

    def __init__(self) -> None:
        self._is_closed = False

    def chunk(self, chunk: Chunk, *, request: int = 0) -> Sequence[bytes]:
        failure = failure_of(chunk.finish)
        return self._chunk(chunk, request) if failure is None else self.error(failure)

    def end(self) -> Sequence[bytes]:
        if self._is_closed:
            return ()
        self._is_closed = True
        return self._end()

    def error(self, error: HeadraceError) -> Sequence[bytes]:
        if self._is_closed:
            return ()
        self._is_closed = True
        return self._error(error)

    @abstractmethod
    def _chunk(self, chunk: Chunk, request: int) -> Sequence[bytes]:
        """Render a chunk without a failure."""

    @abstractmethod
    def _error(self, error: HeadraceError) -> Sequence[bytes]:
        """Render the error event."""

    def _end(self) -> Sequence[bytes]:
        """Render the end; empty if the last chunk contains it."""
        return ()
