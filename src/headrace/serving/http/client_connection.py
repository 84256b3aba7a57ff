"""One keep-alive HTTP/1.1 connection to a server, on httptools: it keeps the boundaries of the server's chunks."""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

import httptools

HIGH_WATER_BYTES = 256 * 1024
"""Bytes that wait for a slow owner before the connection pauses reading."""

OnPart = Callable[[bytes], bool]
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


class ClientResponse:
    """
    Status, headers, and the body in the parts in which the server sent it: each HTTP chunk is a part.

    The connection adds parts as it reads them; one owner takes them out with `relay` or `read`. While the owner keeps
    up, a part goes from the socket to `on_part` within the call that read it: no task is woken.
    """

    def __init__(self, flow: "ClientConnection") -> None:
        self.status = 0
        """0 until the head has arrived."""
        self.headers: dict[str, str] = {}
        """Names in lower case."""
        self.trailers: dict[str, str] = {}
        """The fields after a chunked body."""
        self.is_complete = False
        self._flow: ClientConnection | None = flow
        self._parts: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._on_part: OnPart | None = None
        self._copy: Callable[[bytes], None] | None = None
        self._is_held = False
        self._failure: Exception | None = None
        self._change: asyncio.Future[None] | None = None

    def close(self) -> None:
        """Keep the connection if the response has ended, else close it, which aborts the request. Idempotent."""
        self._resume()  # a paused connection would hang its next request
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.release()

    def copy_to(self, take: Callable[[bytes], None]) -> None:
        """Call `take` with each part as it arrives, besides the owner; at once with those that have arrived."""
        for part in self._parts:
            take(part)
        self._copy = take

    async def started(self) -> None:
        """Wait for status and headers. Raises `NoResponse`."""
        while not self.status:
            await self._changed()

    async def relay(self, on_part: OnPart, drain: Callable[[], Awaitable[None]]) -> None:
        """
        Pass each part to `on_part`, in order, as it arrives; when `on_part` returns False, wait for `drain` first.

        If the response breaks, `ResponseBroken` is raised after all parts that arrived.
        """
        try:
            while True:
                while self._parts:
                    part = self._parts.popleft()
                    self._waiting_bytes -= len(part)
                    if not on_part(part):
                        await drain()
                self._resume()
                if self.is_complete:
                    return
                self._on_part = on_part
                await self._changed()
                self._on_part = None
                if self._is_held:
                    self._is_held = False
                    await drain()
        finally:
            self._on_part = None

    async def read(self, max_bytes: int, hold: Hold = uncounted) -> bytes:
        """
        Return the whole body; `hold` is called at least every `HIGH_WATER_BYTES`.

        Raises:
            ResponseBroken: it is incomplete.
            ResponseTooLarge: it has more than `max_bytes`.
        """
        parts: list[bytes] = []
        num_bytes = num_held = 0

        def on_part(part: bytes) -> bool:
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

        await self.relay(on_part, check)
        await check()
        return b"".join(parts)

    def add(self, part: bytes) -> None:
        if self._copy is not None:
            self._copy(part)
        if self._on_part is not None and not self._is_held:
            if not self._on_part(part):
                self._is_held = True
                self.wake()
            return
        self._parts.append(part)
        self._waiting_bytes += len(part)
        if self._waiting_bytes > HIGH_WATER_BYTES and not self._is_paused and self._flow is not None:
            self._is_paused = True
            self._flow.pause()

    def complete(self) -> None:
        self.is_complete = True
        self.wake()

    def fail(self, failure: Exception) -> None:
        """Raise `failure` to the owner, after the parts that arrived."""
        if not self.is_complete:
            self._failure = self._failure or failure
            self.wake()

    def wake(self) -> None:
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


MAX_PART_BYTES = 1024 * 1024
"""A larger chunk is passed on in parts of about this size."""

MAX_HEAD_BYTES = 256 * 1024
"""
Bytes of a response before the end of its head, with interim responses (1xx), or without a byte of its body after it: a
container's server may be broken, and the parser holds a line whose end has not arrived.
"""
_STATUSES = range(100, 600)
"""Further ones have no meaning in HTTP, and no server can pass them on."""
MAX_TRAILERS = 8
"""Further ones are dropped: ours is one."""
_SMALL_BODY_BYTES = 64 * 1024
"""Up to this size head and body leave in one write, and so in one packet where they fit."""


class ClientConnection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(
        self,
        *,
        on_release: Callable[["ClientConnection"], None],
        on_lost: Callable[["ClientConnection"], None],
        make_response: Callable[["ClientConnection"], ClientResponse] = ClientResponse,
    ) -> None:
        """Create a connection: `on_release` is called when the owner of a response has closed it."""
        self.is_open = False
        self.num_requests = 0
        self._on_release = on_release
        self._on_lost = on_lost
        self._make_response = make_response
        self._transport: asyncio.Transport | None = None
        self._response: ClientResponse | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._has_begun = False
        """A byte of the response has arrived."""
        self._num_other_bytes = 0
        """Bytes of the response in a row that were none of its body, up to a read."""
        self._is_framed = False
        self._is_head = False
        self._is_in_chunk = False
        self._chunk: list[bytes] = []
        self._chunk_bytes = 0

    @property
    def is_idle(self) -> bool:
        """True if the connection is open and no response is in progress."""
        return self.is_open and self._response is None

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The encryption of the connection; None: there is none."""
        return None if self._transport is None else self._transport.get_extra_info("ssl_object")

    def send(self, head: bytes, body: bytes, *, is_head: bool = False) -> ClientResponse:
        """Write one request; return the response, which fills from now on. `is_head`: its method is HEAD."""
        assert self.is_idle
        assert self._transport is not None
        self.num_requests += 1
        self._parser = httptools.HttpResponseParser(self)
        self._has_begun = self._is_framed = self._is_in_chunk = False
        self._is_head = is_head
        self._num_other_bytes = 0
        self._chunk, self._chunk_bytes = [], 0
        response = self._response = self._make_response(self)
        if len(body) <= _SMALL_BODY_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        return response

    def release(self) -> None:
        """Let the owner's pool keep or abort the connection."""
        self._on_release(self)

    def abort(self) -> None:
        """Close at once, dropping unread and unsent bytes: the server notices and aborts the request."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is not a subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls the `on_` methods; called by the event loop."""
        response = self._response
        if response is None:
            self.abort()  # unsolicited bytes
            return
        self._has_begun = True
        self._num_other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(response, f"the server's response is not HTTP/1.1 ({error})")
            self.abort()
        if self._num_other_bytes > MAX_HEAD_BYTES and not response.is_complete:
            part = "framing" if response.status else "head"
            self._fail(response, f"the {part} of the server's response has more than {MAX_HEAD_BYTES} bytes")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete or fail the response; called by the event loop."""
        self.is_open = False
        response, self._response = self._response, None
        if response is not None:
            if exc is None and response.status and not self._is_framed:
                response.complete()  # a body without a length ends with its connection
            else:
                self._fail(response, f"the connection closed ({exc or 'end of file'})")
        self._on_lost(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is None or len(response.trailers) == MAX_TRAILERS:
            return
        fields = response.trailers if response.status else response.headers
        fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        response = self._response
        status = self._parser.get_status_code()
        if response is None:
            return
        if status not in _STATUSES:
            self._fail(response, f"the server's response has the status {status}, which is none of HTTP")
            self.abort()
            return
        if status < 200:
            response.headers.clear()
            return
        self._is_framed = "content-length" in response.headers or "transfer-encoding" in response.headers
        response.status = status
        response.wake()
        if self._is_head:  # no body follows, whatever the headers say; the parser waits for one
            self._response = None
            self.is_open = False
            response.complete()

    def on_chunk_header(self) -> None:
        self._is_in_chunk = True

    def on_body(self, body: bytes) -> None:
        """Collect a piece of the body; called by the parser for each read."""
        self._num_other_bytes = 0
        response = self._response
        if response is None:
            return
        if not self._is_in_chunk:
            response.add(body)
            return
        self._chunk.append(body)
        self._chunk_bytes += len(body)
        if self._chunk_bytes >= MAX_PART_BYTES:
            self._flush(response)

    def on_chunk_complete(self) -> None:
        """Pass the chunk on as one part; called by the parser."""
        self._is_in_chunk = False
        if self._chunk and self._response is not None:
            self._flush(self._response)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None or not response.status:
            return  # an interim response (1xx)
        self._response = None
        if not self._parser.should_keep_alive():
            self.is_open = False
        response.complete()

    def _flush(self, response: ClientResponse) -> None:
        part = self._chunk[0] if len(self._chunk) == 1 else b"".join(self._chunk)
        self._chunk, self._chunk_bytes = [], 0
        response.add(part)

    def _fail(self, response: ClientResponse, reason: str) -> None:
        kind = ResponseBroken if response.status else ResponseHeadBroken if self._has_begun else NoResponse
        response.fail(kind(reason))
