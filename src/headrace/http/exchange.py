"""
One response on its way: the head at the right moment, then pieces; and a watch for the client that hangs up.

Below `server.generate` and above raw ASGI. One task a request, none a piece: where the server lets us
(`http.protocol`), a piece goes to the socket within the call that brought it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

from starlette.types import Receive, Send

from headrace.http.protocol import WritePiece

KEEP_ALIVE_S = 15.0
"""A stream that was silent for so long gets the dialect's keep-alive bytes, as TGI does it."""

Headers = tuple[tuple[str, str], ...]


class Exchange:
    """The response to one request."""

    def __init__(
        self,
        send: Send,
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        write_piece: WritePiece | None = None,
    ) -> None:
        self._send = send
        self._write_piece = write_piece
        self._waiting: deque[bytes] = deque()
        self._sending = asyncio.Lock()
        self.keep_alive_s = keep_alive_s
        """How long a stream may be silent."""
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
        self._head = headers
        self._keep_alive = keep_alive
        self._last_sent_s = perf_counter()

    def put(self, piece: bytes) -> bool:
        """Send one piece of the stream as far as that is possible at once; False: `drain` before the next one."""
        if self._write_piece is None or self._waiting or not self.is_started or self._sending.locked():
            self._waiting.append(piece)
            return False
        self._last_sent_s = perf_counter()
        return self._write_piece(piece)

    async def drain(self) -> None:
        """Send what waits, and wait until the client has room for more."""
        async with self._sending:
            if not self.is_started:
                await self._start(200, self._head)
            await self._send_piece(self._waiting.popleft() if self._waiting else b"")
            while self._waiting:
                await self._send_piece(self._waiting.popleft())

    async def _send_piece(self, piece: bytes) -> None:
        self._last_sent_s = perf_counter()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self) -> None:
        """End the stream."""
        if self._waiting or self._sending.locked() or not self.is_started:
            await self.drain()
        self.is_finished = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a response in one go."""
        await self._start(status, (*headers, ("content-length", str(len(body)))))
        self.is_finished = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, headers: Headers) -> None:
        self.is_started = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def keep_alive(self) -> None:
        """Break a long silence, if the dialect has something that says nothing."""
        is_silent = perf_counter() - self._last_sent_s >= self.keep_alive_s
        if self._keep_alive and not self.is_finished and is_silent and not self.put(self._keep_alive):
            await self.drain()


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
