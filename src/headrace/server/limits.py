"""Admission to a model server: the number of requests at once, and the bytes of their bodies."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.core.errors import Busy, PayloadTooLarge
from headrace.core.sizes import format_size
from headrace.http.asgi import Receive, Scope, content_length
from headrace.http.body import BodyTooLarge, read_body
from headrace.http.body_budget import BodyShare, BudgetSpent


async def read_request_body(scope: Scope, receive: Receive, share: BodyShare, *, max_bytes: int) -> bytes:
    """
    Read a request body, counted in `share`.

    Raises:
        PayloadTooLarge: it has, or declares, more than `max_bytes`.
        Busy: the bodies of all requests together are too large.
        ClientGone: the client disconnected before the end of the body.
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
    """Counts the requests in flight and refuses those over the limit."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self.in_flight = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request is in flight."""
        await self._is_idle.wait()

    def check(self) -> None:
        """
        Refuse a request that would be over the limit.

        Raises:
            Busy: as many requests as allowed are in flight.
        """
        if self.in_flight >= self._max_in_flight:
            raise Busy(
                f"{self.in_flight} requests are being answered or waiting; the server takes at most "
                f"{self._max_in_flight} at once (max_concurrent_requests). Try again in a moment.",
                retry_after_s=1.0,
            )

    @contextmanager
    def admit(self) -> Iterator[None]:
        """
        Count a request until the block ends.

        Raises:
            Busy: as many requests as allowed are in flight.
        """
        self.check()
        self.in_flight += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._is_idle.set()
