"""The common part of all stream renderers: failures, and an end that is rendered once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from headrace.core.errors import HeadraceError
from headrace.core.generation import Chunk
from headrace.wire.answers import failure_of


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
