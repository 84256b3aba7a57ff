"""
A response as it arrives from a server.

The connection (`http.client_connection`) adds parts as it reads them; one owner takes them out with `relay` or `read`.
While the owner keeps up, a part goes from the socket to `put` within the call that read it: no task is woken.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

HIGH_WATER_BYTES = 256 * 1024
"""Bytes that wait for a slow owner before the connection pauses reading."""

Put = Callable[[bytes], bool]
"""Takes a part; False: wait for `drain` before the next one."""
Hold = Callable[[int], None]
"""Counts bytes of a whole response that have come into memory; may raise to refuse them."""


def uncounted(_num_bytes: int) -> None:
    """Count nothing; a `Hold`."""


class NoResponse(Exception):
    """No connection could be made, or it broke before a whole response head arrived."""


class ConnectFailed(NoResponse):
    """No connection could be made: the server has seen nothing of the request."""


class ResponseHeadBroken(NoResponse):
    """The connection broke in the middle of the response head, or the head is not HTTP: the server began to respond."""


class ResponseBroken(Exception):
    """The connection broke in the middle of a response, or the response is not HTTP."""


class ResponseTooLarge(Exception):
    """The response has more bytes than its reader holds in memory."""


class Flow(Protocol):
    """The reading side of a connection."""

    def pause(self) -> None:
        """Stop reading from the socket."""
        ...

    def resume(self) -> None:
        """Read on after a `pause`."""
        ...

    def release(self) -> None:
        """Keep the connection for the next request if the response has ended, else close it."""
        ...


class ClientResponse:
    """Status, headers, and the body in the parts in which the server sent it: each HTTP chunk is a part."""

    def __init__(self, flow: Flow) -> None:
        self.status = 0
        """0 until the head has arrived."""
        self.headers: dict[str, str] = {}
        """Names in lower case."""
        self.is_complete = False
        self._flow: Flow | None = flow
        self._parts: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._put: Put | None = None
        self._is_held = False
        self._failure: Exception | None = None
        self._change: asyncio.Future[None] | None = None

    def close(self) -> None:
        """Keep the connection if the response has ended, else close it, which aborts the request. Idempotent."""
        self._resume()  # a paused connection would hang its next request
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.release()

    async def started(self) -> None:
        """Wait for status and headers. Raises `NoResponse`."""
        while not self.status:
            await self._changed()

    async def relay(self, put: Put, drain: Callable[[], Awaitable[None]]) -> None:
        """
        Pass each part to `put`, in order, as it arrives; when `put` returns False, wait for `drain` first.

        Raises:
            ResponseBroken: after all parts that arrived.
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

    async def read(self, max_bytes: int, hold: Hold = uncounted) -> bytes:
        """
        Return the whole body.

        Args:
            max_bytes: the largest body to take.
            hold: called at least every `HIGH_WATER_BYTES`.

        Raises:
            ResponseBroken: it is incomplete.
            ResponseTooLarge: it has more than `max_bytes`.
        """
        parts: list[bytes] = []
        num_bytes = num_held = 0

        def put(part: bytes) -> bool:
            nonlocal num_bytes
            parts.append(part)
            num_bytes += len(part)
            return num_bytes <= max_bytes and num_bytes - num_held < HIGH_WATER_BYTES

        async def check() -> None:
            nonlocal num_held
            if num_bytes > max_bytes:
                raise ResponseTooLarge(f"The response has more than {max_bytes} bytes.")
            hold(num_bytes - num_held)
            num_held = num_bytes

        await self.relay(put, check)
        await check()
        return b"".join(parts)

    def add(self, part: bytes) -> None:
        """Take a part from the connection."""
        if self._put is not None and not self._is_held:
            if not self._put(part):
                self._is_held = True
                self.wake()
            return
        self._parts.append(part)
        self._waiting_bytes += len(part)
        if self._waiting_bytes > HIGH_WATER_BYTES and not self._is_paused and self._flow is not None:
            self._is_paused = True
            self._flow.pause()

    def complete(self) -> None:
        """Mark the response as complete."""
        self.is_complete = True
        self.wake()

    def fail(self, failure: Exception) -> None:
        """Raise `failure` to the owner, after the parts that arrived."""
        if not self.is_complete:
            self._failure = self._failure or failure
            self.wake()

    def wake(self) -> None:
        """Wake the owner after a change by the connection."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def _changed(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._change = asyncio.get_running_loop().create_future()
        await self._change

    def _resume(self) -> None:
        if self._is_paused and self._flow is not None:
            self._is_paused = False
            self._flow.resume()
