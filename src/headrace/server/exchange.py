"""
One response on its way: the head at the right moment, then pieces; and a watch for the client that hangs up.

Below `server.generate` and above raw ASGI. One task a request, none a piece.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

from starlette.types import Receive, Send

KEEP_ALIVE_S = 15.0
"""A stream that was silent for so long gets the dialect's keep-alive bytes, as TGI does it."""

Headers = tuple[tuple[str, str], ...]


class Exchange:
    """The response to one request."""

    def __init__(self, send: Send, common_headers: Headers, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._send = send
        self.keep_alive_s = keep_alive_s
        """How long a stream may be silent."""
        self._common = common_headers
        self._head: Headers = ()
        self._keep_alive = b""
        self._last_sent_s = 0.0
        self.is_started = False
        """The head has been sent: the status can no longer change."""
        self.is_finished = False
        self.is_gone = False
        """The client hung up before the end."""

    def begin_stream(self, headers: Headers, *, keep_alive: bytes) -> None:
        """Get a stream ready; its head goes out with the first piece, so that an error may still have a status."""
        self._head = (*self._common, *headers)
        self._keep_alive = keep_alive
        self._last_sent_s = perf_counter()

    async def write(self, piece: bytes) -> None:
        """Send one piece of the stream."""
        if not self.is_started:
            await self._start(200, self._head)
        self._last_sent_s = perf_counter()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self) -> None:
        """End the stream."""
        if not self.is_started:
            await self._start(200, self._head)
        self.is_finished = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a response in one go."""
        await self._start(status, (*self._common, *headers, ("content-length", str(len(body)))))
        self.is_finished = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, headers: Headers) -> None:
        self.is_started = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def keep_alive(self) -> None:
        """Break a long silence, if the dialect has something that says nothing."""
        if self._keep_alive and not self.is_finished and perf_counter() - self._last_sent_s >= self.keep_alive_s:
            await self.write(self._keep_alive)


@asynccontextmanager
async def watching(receive: Receive, exchange: Exchange) -> AsyncIterator[None]:
    """Cancel what runs inside when the client hangs up: `exchange.is_gone` then says why."""
    owner = asyncio.current_task()
    assert owner is not None
    watcher = asyncio.create_task(_watch(receive, exchange, owner))
    try:
        yield
    finally:
        watcher.cancel()


async def _watch(receive: Receive, exchange: Exchange, owner: "asyncio.Task[object]") -> None:
    while not exchange.is_finished:
        try:
            async with asyncio.timeout(exchange.keep_alive_s):
                message = await receive()
        except TimeoutError:
            await exchange.keep_alive()
            continue
        if message["type"] == "http.disconnect" and not exchange.is_finished:
            exchange.is_gone = True
            owner.cancel()
            return
