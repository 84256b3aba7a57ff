"""What a server takes at once: the size of one body, and the number of requests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Receive, Scope

from headrace.core.errors import Busy, PayloadTooLarge
from headrace.core.sizes import format_size
from headrace.http.body_budget import BodyShare, BudgetSpent


class ClientGone(Exception):
    """The client hung up before its request was complete."""


async def read_body(scope: Scope, receive: Receive, share: BodyShare, *, max_bytes: int) -> bytes:
    """
    Read the whole body, never holding more than `max_bytes` of it, and count it in `share`.

    Raises:
        PayloadTooLarge: the body is, or says it is, larger.
        Busy: the bodies of all requests together are too large.
        ClientGone: the client went away before its end.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > max_bytes:
            raise _too_large(int(value), max_bytes)
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        try:
            share.add(len(part))
        except BudgetSpent:
            raise Busy(
                "The server holds as many bytes of request bodies as it takes (max_buffered_bytes). "
                "Try again in a moment, or send less.",
                retry_after_s=1.0,
            ) from None
        if share.num_bytes > max_bytes:
            raise _too_large(share.num_bytes, max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(num_bytes: int, max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The request body has {num_bytes} bytes or more, at most {format_size(max_bytes)} are taken. "
        "Send less, or start the server with a larger max_body_bytes.",
        num_bytes=num_bytes,
        max_bytes=max_bytes,
    )


class Gate:
    """Counts the requests inside and turns away those that are too many."""

    def __init__(self, max_inside: int) -> None:
        self._max_inside = max_inside
        self.inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def wait_empty(self) -> None:
        """Return once nobody is inside."""
        await self._empty.wait()

    def check(self) -> None:
        """
        Refuse a request for which there will be no place.

        Raises:
            Busy: as many as allowed are inside already.
        """
        if self.inside >= self._max_inside:
            raise Busy(
                f"{self.inside} requests are being answered or waiting; the server takes at most {self._max_inside} at "
                "once (max_concurrent_requests). Try again in a moment.",
                retry_after_s=1.0,
            )

    @contextmanager
    def enter(self) -> Iterator[None]:
        """
        Be inside for a while.

        Raises:
            Busy: as many as allowed are inside already.
        """
        self.check()
        self.inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.inside -= 1
            if not self.inside:
                self._empty.set()
