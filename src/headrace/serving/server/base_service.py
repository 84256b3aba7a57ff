"""State that every model server has: its phase, and the limits for all requests together."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import TypeVar

from headrace.core.errors import Busy, PayloadTooLarge, Unavailable, UnsupportedEncoding
from headrace.core.sizes import format_size
from headrace.core.tracing import NO_TRACER, Tracer
from headrace.serving.http.asgi import Receive, Scope, content_encoding, content_length
from headrace.serving.http.body import BodyBudget, BodyShare, BodyTooLarge, BudgetSpent, read_body
from headrace.serving.settings.server_settings import ServerSettings
from headrace.serving.wire.framing import without_bom
from headrace.serving.wire.json_size import INLINE_BYTES, UNCOUNTED_BYTES, check_json_size


async def read_request_body(scope: Scope, receive: Receive, share: BodyShare, *, max_bytes: int) -> bytes:
    """
    Read a request body, counted in `share`.

    Raises:
        PayloadTooLarge: it has, or declares, more than `max_bytes`.
        Busy: the bodies of all requests together are too large.
        ClientGone: the client disconnected before its end.
    """
    try:
        return await read_body(receive, max_bytes=max_bytes, content_length=content_length(scope), share=share)
    except BudgetSpent:
        raise Busy(
            "The server holds as many bytes of request bodies as it takes (max_buffered_bytes). "
            "Try again in a moment, or send less.",
            retry_after_s=1.0,
        ) from None
    except BodyTooLarge as error:
        raise PayloadTooLarge(
            f"The request body has {error.num_bytes} bytes or more, at most {format_size(max_bytes)} are taken. "
            "Send less, or start the server with a larger max_body_bytes.",
            num_bytes=error.num_bytes,
            max_bytes=max_bytes,
        ) from None


class RequestLimiter:
    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self.in_flight = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def wait_idle(self) -> None:
        await self._is_idle.wait()

    def check(self) -> None:
        """Raise `Busy` if as many requests as allowed are in flight."""
        if self.in_flight >= self._max_in_flight:
            raise Busy(
                f"{self.in_flight} requests are being answered or waiting; the server takes at most "
                f"{self._max_in_flight} at once (max_concurrent_requests). Try again in a moment.",
                retry_after_s=1.0,
            )

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request until the block ends, or raise `Busy`."""
        self.check()
        self.in_flight += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._is_idle.set()


T = TypeVar("T")


class ServerPhase(StrEnum):
    """The phase of a server's life, as health checks report it."""

    LOADING = "loading"
    READY = "ready"
    """A real token has been produced, or a child has loaded the model's code."""
    TERMINATING = "terminating"
    """Draining after SIGTERM: health checks fail, requests are still answered."""
    CLOSING = "closing"
    FAILED = "failed"
    """The model cannot be served any more; only a restart helps."""


NOT_READY = {
    ServerPhase.LOADING: "The model is still loading.",
    ServerPhase.TERMINATING: "The server is shutting down. Requests that still arrive are answered.",
    ServerPhase.CLOSING: "The server is shutting down.",
    ServerPhase.FAILED: "The engine has failed and cannot go on. Restart the server.",
}
"""Reasons in the answers of health checks."""


class BaseService(ABC):
    """
    The phase of a server and the admission of its requests.

    The server listens before the model is loaded, so that health checks are answered meanwhile.
    """

    reads_json = True
    """False: bodies are passed on as they are, also with a `Content-Encoding`, for the model's own code to decode."""

    def __init__(self, settings: ServerSettings, *, is_ready: bool, tracer: Tracer = NO_TRACER) -> None:
        self.settings = settings
        self.tracer = tracer
        self.phase = ServerPhase.READY if is_ready else ServerPhase.LOADING
        self.limiter = RequestLimiter(settings.max_concurrent_requests)
        self.budget = BodyBudget(settings.max_buffered_bytes)
        self._large_bodies = asyncio.Semaphore(1)

    @property
    @abstractmethod
    def is_healthy(self) -> bool:
        """False once a model that has been loaded cannot be served any more."""

    @property
    def health(self) -> ServerPhase:
        """The phase, or FAILED if the model cannot be served any more."""
        is_serving = self.phase in {ServerPhase.READY, ServerPhase.TERMINATING}
        return self.phase if self.is_healthy or not is_serving else ServerPhase.FAILED

    def terminate(self) -> None:
        """Fail health checks from now on and keep serving."""
        self.phase = ServerPhase.TERMINATING

    def close(self) -> None:
        self.phase = ServerPhase.CLOSING

    def check_open(self) -> None:
        """Raise `Unavailable` while the model is still loading, or the server is shutting down."""
        if self.phase is ServerPhase.CLOSING:
            raise Unavailable("The server is shutting down.")
        if self.phase is ServerPhase.LOADING:
            raise Unavailable("The model is still loading. Try again in a moment; /ping is 200 when it is ready.")

    @asynccontextmanager
    async def admit(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """
        Read a body and admit its request until the block ends.

        A request that is still arriving does not count: clients that send slowly would lock out all others. Raises
        `UnsupportedEncoding` for a compressed body, and as `read_request_body` does.
        """
        encoding = content_encoding(scope)
        if encoding is not None and self.reads_json:
            raise UnsupportedEncoding(encoding)
        self.limiter.check()
        with self.budget.share() as share:
            body = await read_request_body(scope, receive, share, max_bytes=self.settings.max_body_bytes)
            with self.limiter.admit():
                yield without_bom(body) if self.reads_json else body

    async def parse_body(self, body: bytes, read: Callable[[bytes], T], *, extra_bytes: int = 0) -> T:
        """
        Parse a body with `read`; a large one on another thread, so that other requests get their tokens meanwhile.

        One large body at a time, because its values may take many times the memory of its bytes. `extra_bytes` is the
        size of what `read` parses besides the body. Raises `PayloadTooLarge` for too many values (`check_json_size`).
        """
        if len(body) + extra_bytes <= INLINE_BYTES:
            if len(body) > UNCOUNTED_BYTES:
                check_json_size(body)
            return read(body)
        async with self._large_bodies:
            await asyncio.to_thread(check_json_size, body)
            return await asyncio.to_thread(read, body)
