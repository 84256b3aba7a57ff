"""
The answer of a worker on its way through the gateway.

The connection (`http.client_connection`) adds parts as it reads them; one owner takes them out with `relay` or `read`.
While the owner keeps up, a part goes from the socket to `put` within the call that read it: no task is woken.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

HIGH_WATER_BYTES = 256 * 1024
"""So much waits for a slow client before the worker's connection is not read any more."""

Put = Callable[[bytes], bool]
"""Takes a part; False: wait for `drain` before the next one."""


class UpstreamFailed(Exception):
    """No connection could be made, or it broke before an answer began."""


class NotConnected(UpstreamFailed):
    """No connection could be made: the worker has seen nothing of the request."""


class BrokenInHead(UpstreamFailed):
    """It broke after the first byte, or what came is not HTTP: an answer has begun, and nobody knows which."""


class AnswerBroken(Exception):
    """The connection broke in the middle of an answer, or what came is not HTTP."""


class AnswerTooLong(Exception):
    """The answer has more bytes than are held in memory."""


class Flow(Protocol):
    """The reading side of a connection."""

    def pause(self) -> None:
        """Read no more for now."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...


class Answer:
    """Status, headers, and the body in the parts in which the worker sent it (one HTTP chunk, one part)."""

    def __init__(self, flow: Flow) -> None:
        self.status = 0
        """0 until the head has come."""
        self.headers: dict[str, str] = {}
        """Names in lower case."""
        self.is_complete = False
        self._flow = flow
        self._parts: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._put: Put | None = None
        self._is_held = False
        self._failure: Exception | None = None
        self._change: asyncio.Future[None] | None = None

    async def begun(self) -> None:
        """Wait for status and headers. Raises `UpstreamFailed`."""
        while not self.status:
            await self._changed()

    async def relay(self, put: Put, drain: Callable[[], Awaitable[None]]) -> None:
        """
        Give every part to `put`, in order, as it comes; when `put` says so, wait for `drain` first.

        Raises:
            AnswerBroken: after all parts that came.
        """
        try:
            while True:
                while self._parts:
                    part = self._parts.popleft()
                    self._waiting_bytes -= len(part)
                    if not put(part):
                        await drain()
                self._resume()
                if self.is_complete:
                    return
                self._put = put
                await self._changed()
                self._put = None
                if self._is_held:
                    self._is_held = False
                    await drain()
        finally:
            self._put = None

    async def read(self, max_bytes: int) -> bytes:
        """
        The whole body.

        Raises:
            AnswerBroken: it is not whole.
            AnswerTooLong: it has more than `max_bytes`.
        """
        parts: list[bytes] = []
        num_bytes = 0

        def put(part: bytes) -> bool:
            nonlocal num_bytes
            parts.append(part)
            num_bytes += len(part)
            return num_bytes <= max_bytes

        async def refuse() -> None:
            raise AnswerTooLong(f"The answer has more than {max_bytes} bytes.")

        await self.relay(put, refuse)
        return b"".join(parts)

    def add(self, part: bytes) -> None:
        """Called by the connection: a part has come."""
        if self._put is not None and not self._is_held:
            if not self._put(part):
                self._is_held = True
                self.wake()
            return
        self._parts.append(part)
        self._waiting_bytes += len(part)
        if self._waiting_bytes > HIGH_WATER_BYTES and not self._is_paused:
            self._is_paused = True
            self._flow.pause()

    def complete(self) -> None:
        """Called by the connection: that was all."""
        self.is_complete = True
        self.wake()

    def fail(self, failure: Exception) -> None:
        """Called by the connection: there will be no more."""
        if not self.is_complete:
            self._failure = self._failure or failure
            self.wake()

    def wake(self) -> None:
        """Called by the connection: something has changed."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def _changed(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._change = asyncio.get_running_loop().create_future()
        await self._change

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._flow.resume()
