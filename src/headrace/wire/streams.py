"""Common parts of replies: the head of a response, and streams whose failures and end are rendered once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from headrace.core.errors import HeadraceError
from headrace.core.generation import Chunk
from headrace.wire.answers import failure_of
from headrace.wire.dialect import Timings
from headrace.wire.framing import JSON_CONTENT_TYPE, SSE_CONTENT_TYPE, UNBUFFERED_HEADERS


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
        """The content type of JSON or of a stream."""
        return self.stream_type if self.options.is_stream else JSON_CONTENT_TYPE

    def headers(self, timings: Timings | None) -> tuple[tuple[str, str], ...]:
        """Return additional response headers."""
        del timings
        return UNBUFFERED_HEADERS if self.options.is_stream else ()


class ClosingStream(ABC):
    """A `StreamRenderer` that renders nothing after its end or an error."""

    keep_alive: bytes = b""

    def __init__(self) -> None:
        self._is_closed = False

    def chunk(self, chunk: Chunk, *, request: int = 0) -> Sequence[bytes]:
        """Render a chunk, or the error that it carries."""
        failure = failure_of(chunk.finish)
        return self._chunk(chunk, request) if failure is None else self.error(failure)

    def end(self) -> Sequence[bytes]:
        """Render what follows the last chunk."""
        if self._is_closed:
            return ()
        self._is_closed = True
        return self._end()

    def error(self, error: HeadraceError) -> Sequence[bytes]:
        """Render an error that ends the stream."""
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
