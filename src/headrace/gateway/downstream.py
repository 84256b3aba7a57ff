"""
The client's side of one exchange, on raw ASGI.

The body under a limit, the answer whole or in parts, and a watch for the client that hangs up.

Where the server offers a short way for the parts of a stream (an ASGI extension, see `headrace.http.protocol`),
a part goes to the socket within the call that brought it; without it, it goes the way that ASGI has, as fast as it can.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from headrace.http.body_budget import BodyBudget, BodyShare

WRITE_PIECE = "headrace.write_piece"

BODY_TIMEOUT_S = 300.0
"""So long may a client take to send a body."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[str, str]]


class ClientGone(Exception):
    """The client hung up; nobody is left to answer."""


class BodyTooLarge(Exception):
    """The body has, or says that it has, more bytes than are taken."""


class BodyTooSlow(Exception):
    """The body did not come in time."""


class Downstream:
    """One request, and the response to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._write = (scope.get("extensions") or {}).get(WRITE_PIECE)
        self._waiting: list[bytes] = []
        self.is_started = False
        """The head has been sent: the status can no longer change."""
        self.is_finished = False
        self.num_bytes = 0
        """Of the response's body."""

    @asynccontextmanager
    async def body(self, budget: BodyBudget, *, max_bytes: int) -> AsyncIterator[bytes]:
        """
        Read the whole body, and count it in `budget` until the block ends.

        Raises:
            BodyTooLarge: `max_bytes`; what was not read yet is not read.
            BodyTooSlow: it did not come within `BODY_TIMEOUT_S`.
            BudgetSpent: too many bodies are held already.
            ClientGone: before its end.
        """
        if _declared_length(self._scope["headers"]) > max_bytes:
            raise BodyTooLarge
        with budget.share() as share:
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    body = await self._collect(share, max_bytes)
            except TimeoutError:
                raise BodyTooSlow from None
            yield body

    async def _collect(self, share: BodyShare, max_bytes: int) -> bytes:
        parts, has_more = [], True
        while has_more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            share.add(len(parts[-1]))
            if share.num_bytes > max_bytes:
                raise BodyTooLarge
            has_more = message.get("more_body", False)
        return b"".join(parts)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Cancel what runs inside when the client hangs up. Raises `ClientGone` then."""
        owner = asyncio.current_task()
        assert owner is not None
        cancelled_before = owner.cancelling()
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if not self.is_finished:
                is_gone = True
                owner.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if is_gone and owner.uncancel() == cancelled_before:
                raise ClientGone from None
            raise
        finally:
            watcher.cancel()

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head."""
        self.is_started = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    def put(self, part: bytes) -> bool:
        """Send a part of the body as far as that is possible at once; False: `drain` before the next one."""
        self.num_bytes += len(part)
        if self._write is None or self._waiting:
            self._waiting.append(part)
            return False
        fits: bool = self._write(part)
        return fits

    async def drain(self) -> None:
        """Send what waits, and wait until the client has room for more."""
        waiting, self._waiting = self._waiting, []
        await self._send({"type": "http.response.body", "body": b"".join(waiting), "more_body": True})

    async def finish(self) -> None:
        """End the body."""
        self.is_finished = True
        waiting, self._waiting = self._waiting, []
        await self._send({"type": "http.response.body", "body": b"".join(waiting), "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a response in one go."""
        await self.start(status, (*headers, ("content-length", str(len(body)))))
        self.num_bytes = len(body)
        self.is_finished = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _declared_length(headers: Iterable[tuple[bytes, bytes]]) -> int:
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
