"""Requests to user code and their responses, between routes and pool, and the calls that a child runs."""

import asyncio
import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from headrace.serving.handlers.errors import WholeResponse
from headrace_handler.contract import Mode
from headrace_handler.frames import INLINE_BYTES, Buffer, read_memory_file, write_memory_file

Pairs = Sequence[tuple[str, str]]

_ids = count(1)
_call_ids = count(1)


class MemoryFile:
    """Large content outside the memory of this process; see `headrace_handler.frames`."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._closing = weakref.finalize(self, os.close, descriptor)
        self.num_bytes = num_bytes

    @classmethod
    def of(cls, content: Buffer) -> "MemoryFile":
        """Write content to a new file; blocks."""
        return cls(write_memory_file(content), len(content))

    @property
    def descriptor(self) -> int:
        return _descriptor_of(self._closing.peek())

    async def read(self) -> bytearray:
        """Return the content and close the file."""
        return await asyncio.to_thread(self._read)

    def close(self) -> None:
        self._closing()

    def _read(self) -> bytearray:
        return read_memory_file(_descriptor_of(self._closing.detach()), self.num_bytes)


def _descriptor_of(closing: tuple[Any, Any, tuple[Any, ...], Any] | None) -> int:
    """Return the descriptor that a finalizer would have closed."""
    assert closing is not None, "a memory file is used once"
    (descriptor,) = closing[2]
    return int(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPart:
    """A part of a request body; see `Part`."""

    name: str = ""
    content_type: str | None = None
    content: Buffer | MemoryFile = b""

    @property
    def num_bytes(self) -> int:
        return self.content.num_bytes if isinstance(self.content, MemoryFile) else len(self.content)


async def request_part(content: Buffer, *, name: str = "", content_type: str | None = None) -> RequestPart:
    """Return a part whose content is in a memory file if it is large."""
    if len(content) <= INLINE_BYTES:
        return RequestPart(name=name, content_type=content_type, content=content)
    file = await asyncio.to_thread(MemoryFile.of, content)
    return RequestPart(name=name, content_type=content_type, content=file)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRequest:
    """A request for user code; see `Item`."""

    request_id: str
    mode: Mode = "predict"
    method: str = "POST"
    path: str = "/invocations"
    headers: Pairs = ()
    query: Pairs = ()
    parts: Sequence[RequestPart] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead:
    """The head of a response whose parts follow."""

    status: int
    phrase: str
    headers: Pairs


class BrokenResponse(Exception):
    """A response that has started and cannot be completed."""


def _no_credit(_num_chunks: int, _num_bytes: int) -> None:
    """Do nothing: no child runs the request."""


class PendingResponse:
    """
    The response to a request, written by the pool and read by a route.

    The route calls `head` once, then `part` until None, and `close` in any case.
    """

    def __init__(self, request: HandlerRequest, on_close: Callable[["PendingResponse"], None]) -> None:
        self.request = request
        self.item_id = next(_ids)
        self.arrived_s = 0.0
        self.is_cancelled = False
        self.has_ended = False
        """The last event has arrived; the route may not have read it yet."""
        self.has_head = False
        self.credit: Callable[[int, int], None] = _no_credit
        """Tells the child that the client has taken chunks and bytes."""
        self.num_untaken = 0
        self._untold_chunks = 0
        self._untold_bytes = 0
        self._on_close = on_close
        self._head: WholeResponse | StreamHead | None = None
        self._parts: deque[Buffer | MemoryFile] = deque()
        self._error: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    # For the route.

    async def head(self) -> WholeResponse | StreamHead:
        """Wait for the head; that of a response in one piece has the body."""
        while self._head is None:
            await self._event()
        if isinstance(self._head, WholeResponse) and self._parts:
            self._head = replace(self._head, body=await _read(self._parts.popleft()))
        return self._head

    async def part(self) -> Buffer | None:
        """Return the next part of a stream; None at its end. Raises `BrokenResponse`: it cannot be completed."""
        while not self._parts:
            if self._error is not None:
                raise BrokenResponse(self._error)
            if self.has_ended:
                return None
            await self._event()
        content = await _read(self._parts.popleft())
        self.num_untaken -= 1
        self._tell(len(content))
        return content

    def close(self) -> None:
        """Discard what has not been read, and cancel the request if it is still running."""
        if not self.has_ended and not self.is_cancelled:
            self.is_cancelled = True
            self._on_close(self)
        for part in (*self._parts, *(part.content for part in self.request.parts)):
            if isinstance(part, MemoryFile):
                part.close()
        self._parts.clear()

    # For the pool and the child.

    def put_whole(self, response: WholeResponse, body: Buffer | MemoryFile = b"") -> None:
        """Answer in one piece; a body in a memory file replaces the response's."""
        self._head = response
        if isinstance(body, MemoryFile):
            self._add(body)
        self.put_end()

    def put_head(self, head: StreamHead) -> None:
        self._head = head
        self.has_head = True
        self._wake()

    def put_part(self, content: Buffer | MemoryFile) -> None:
        self._add(content)
        self._wake()

    def fail(self, response: WholeResponse, message: str) -> None:
        """Answer with an error; a response that has started is aborted with the message instead."""
        if self.has_ended:
            return
        if self.has_head:
            self._error = message
            self.put_end()
        else:
            self.put_whole(response)

    def _add(self, content: Buffer | MemoryFile) -> None:
        if self.is_cancelled:
            if isinstance(content, MemoryFile):
                content.close()
            return
        self._parts.append(content)
        self.num_untaken += 1

    def put_end(self) -> None:
        self.has_ended = self.has_head = True
        self.credit = _no_credit  # it refers to this response: large bodies would wait for the garbage collector
        self._wake()

    def _tell(self, num_bytes: int) -> None:
        """Return credit to the child, several chunks at a time to save frames."""
        self._untold_chunks += 1
        self._untold_bytes += num_bytes
        if self._untold_chunks >= _TOLD_CHUNKS or self._untold_bytes >= _TOLD_BYTES:
            if not self.has_ended:
                self.credit(self._untold_chunks, self._untold_bytes)
            self._untold_chunks = self._untold_bytes = 0

    async def _event(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None:
            with contextlib.suppress(asyncio.InvalidStateError):
                self._waiter.set_result(None)


_TOLD_CHUNKS = 4
_TOLD_BYTES = INLINE_BYTES // 2


async def _read(content: Buffer | MemoryFile) -> Buffer:
    return await content.read() if isinstance(content, MemoryFile) else content


class ChildCall:
    """A call that a child runs."""

    def __init__(self, responses: Sequence[PendingResponse], on_done: Callable[["ChildCall"], None]) -> None:
        self.call_id = next(_call_ids)
        self.responses = {response.item_id: response for response in responses}
        self.started_s = time.monotonic()
        self.is_streaming = False
        self.is_late = False
        self.timer: asyncio.TimerHandle | None = None
        self.on_done = on_done

    @property
    def waits_for_client(self) -> bool:
        """True while a client has not taken all parts sent so far."""
        waiting = (response for response in self.responses.values() if not response.is_cancelled)
        return any(response.num_untaken and not response.has_ended for response in waiting)


def call_frame(call: ChildCall) -> tuple[dict[str, Any], list[Buffer], list[int]]:
    """Return header, payload and descriptors of the frame for a call."""
    items, payload, descriptors = [], [], []
    for item_id, response in call.responses.items():
        request, parts = response.request, []
        for part in request.parts:
            is_file = isinstance(part.content, MemoryFile)
            parts.append(
                {"name": part.name, "content_type": part.content_type, "length": part.num_bytes, "memfd": is_file}
            )
            if isinstance(part.content, MemoryFile):
                descriptors.append(part.content.descriptor)
            else:
                payload.append(part.content)
        fields = {"request_id": request.request_id, "method": request.method, "path": request.path}
        items.append({"id": item_id, **fields, "headers": request.headers, "query": request.query, "parts": parts})
    mode = next(iter(call.responses.values())).request.mode
    header = {"call": call.call_id, "mode": mode, "items": items, "memfds": len(descriptors)}
    return header, payload, descriptors
