"""
One request and the response to it, on raw ASGI: reads the body, sends the response, watches for a client disconnect.

One task per request, none per part: where the server supports it (`http.protocol`), a part of a stream is written to
the socket within the call that delivers it; elsewhere it is sent through ASGI.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from headrace.serving.http.asgi import (
    Body,
    Headers,
    Receive,
    Scope,
    Send,
    WritePart,
    content_length,
    head_message,
    part_writer,
    response_messages,
)
from headrace.serving.http.body import BodyBudget, BodyShare, ClientGone, read_body


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send, *, keep_alive_s: float | None = None) -> None:
        """Create an exchange; `keep_alive_s` is the longest silence of a stream that has keep-alive bytes."""
        self._scope = scope
        self._receive = receive
        self._share: BodyShare | None = None
        self._send = send
        self._write = part_writer(scope)
        self._direct: WritePart | None = None
        """The writer while the head has been sent and no part is waiting; else None."""
        self._waiting: deque[bytes] = deque()
        self._sending = asyncio.Lock()
        self._keep_alive_s = keep_alive_s
        self._keep_alive = b""
        self._head: Headers = ()
        self._is_silent = False
        """Nothing was sent since the last check."""
        self.is_started = False
        """The head has been sent: the status can no longer change."""
        self.is_finished = False
        self.status = 0
        """Status of the response; 0 before it is sent."""
        self.num_bytes = 0
        """Bytes of the response's body."""

    async def read_body(
        self, *, max_bytes: int, timeout_s: float | None = None, share: BodyShare | None = None
    ) -> bytes:
        length = content_length(self._scope)
        return await read_body(
            self._receive, max_bytes=max_bytes, content_length=length, timeout_s=timeout_s, share=share
        )

    @contextmanager
    def held_in(self, budget: BodyBudget) -> Iterator[None]:
        """Count what `hold` is given in `budget` until the block ends."""
        with budget.share() as self._share:
            yield

    def hold(self, num_bytes: int) -> None:
        """Count bytes of the response that are in memory; raise `BudgetSpent` if all bodies together are too large."""
        if self._share is not None:
            self._share.add(num_bytes)

    @asynccontextmanager
    async def cancelled_on_disconnect(self) -> AsyncIterator[None]:
        """Cancel the block, and raise `ClientGone`, when the client disconnects before the end of the response."""
        owner = asyncio.current_task()
        assert owner is not None
        cancelled_before = owner.cancelling()
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            await self._disconnected()
            if not self.is_finished:
                is_gone = True
                owner.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            # Another cancellation, such as that of a shutdown, goes on as it is.
            if is_gone and owner.uncancel() == cancelled_before:
                raise ClientGone from None
            raise
        finally:
            watcher.cancel()

    async def _disconnected(self) -> None:
        """Wait until the client has disconnected; meanwhile, send keep-alive bytes into a silent stream."""
        if self._keep_alive_s is None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            return
        is_connected = True
        while is_connected:
            try:
                async with asyncio.timeout(self._keep_alive_s):
                    is_connected = (await self._receive())["type"] != "http.disconnect"
            except TimeoutError:
                was_silent, self._is_silent = self._is_silent, True
                if self._keep_alive and was_silent and not self.is_finished and not self.put(self._keep_alive):
                    await self.drain()

    def begin_stream(self, headers: Headers, *, keep_alive: bytes = b"") -> None:
        """Prepare a stream with status 200; its head is sent with the first part: an error before it has a status."""
        self._head = headers
        self._keep_alive = keep_alive
        self._is_silent = False

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of a stream at once."""
        head = head_message(status, headers)  # if it fails, an error can still be answered
        self.is_started, self.status = True, status
        await self._send(head)
        self._direct = None if self._waiting else self._write

    def put(self, part: bytes) -> bool:
        """Send a part of a stream without waiting; False: `drain` before the next one."""
        self.num_bytes += len(part)
        if self._direct is None:
            self._waiting.append(part)
            return False
        self._is_silent = False
        return self._direct(part)

    async def drain(self) -> None:
        """Send the waiting parts, each as a chunk of its own, and wait until the client has room for more."""
        async with self._sending:
            if not self.is_started:
                await self.start(200, self._head)
            self._direct = None
            await self._send_part(self._waiting.popleft() if self._waiting else b"")
            while self._waiting:
                await self._send_part(self._waiting.popleft())
            self._direct = self._write

    async def finish(self) -> None:
        if self._waiting or self._sending.locked() or not self.is_started:
            await self.drain()
        self.is_finished = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def respond(self, status: int, headers: Headers, body: Body) -> None:
        """Send a whole response; on our server, return when the client has read most of it or is gone."""
        messages = response_messages(self._scope, status, headers, body)  # if it fails, an error can still be answered
        self.is_started = self.is_finished = True
        self.status = status
        self.num_bytes = len(body)
        for message in messages:
            await self._send(message)

    async def _send_part(self, part: bytes) -> None:
        self._is_silent = False
        await self._send({"type": "http.response.body", "body": part, "more_body": True})
