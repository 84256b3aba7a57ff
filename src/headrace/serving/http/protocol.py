"""
Uvicorn's HTTP protocol, made strict and bounded, with a direct write for the parts of a stream.

Strict: a malformed request gets a JSON error and a closed connection (`http.head`), after the responses to earlier
requests. An `Upgrade` to an unsupported protocol is ignored, as HTTP requires, with the body intact.

Bounded: the size of the head, the time for head and body, the time that a client does not read, the connections, and
the memory that they hold (`http.connection_memory`).

Direct write: ASGI needs a coroutine call per part through every middleware, which costs several times as much as the
write itself. It is an ASGI extension (`http.asgi.WRITE_PART`), optional for applications and servers.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.core.telemetry import get_logger
from headrace.serving.http.asgi import TRAILERS, WRITE_PART, ASGIApp, Message, Receive, Scope, Send, has_length
from headrace.serving.http.connection_memory import ConnectionMemory, ConnectionShare
from headrace.serving.http.direct_writes import HeadJoiner, TrailerWriter, end_by_close, part_writer_of, pieces_of
from headrace.serving.http.errors import ResponseAborted
from headrace.serving.http.head import MAX_HEAD_BYTES, MAX_HEADERS, HttpRefused, check_head, refusal_of

LINGER_S = 2.0
"""Seconds for a client to read a refusal sent before the end of its request: closing at once would reset it."""
MAX_PIPELINED = 32
"""Requests that wait on a connection for the response before theirs."""
PIPELINED_BYTES = 4096
"""Memory of a pipelined request besides its body."""
UNSENT_BYTES = 16 * 1024
"""Unsent bytes above which an application waits for its client; the kernel's buffer comes before them."""
MIN_BYTES_A_SECOND = 256 * 1024
"""A body that arrives at this rate never times out, whatever its size."""
MAX_SMALL_CHUNKS = 16_384
"""Chunks of a body, unless they have `SMALL_CHUNK_BYTES` on average: a million of one byte held the loop for 0.2 s."""
SMALL_CHUNK_BYTES = 64
ALLOWED = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits on the connections of a server and on the time of its clients; the settings have the defaults."""

    max_connections: int
    receive_timeout_s: float
    """Time for the head of a request, and again for its body, plus a second per `MIN_BYTES_A_SECOND` of body."""
    send_timeout_s: float
    """Seconds that a client may leave a response unread before its connection is dropped."""
    handshake_timeout_s: float = 10.0
    """Time for a TLS handshake; connections in a handshake count towards `max_connections`."""


class StreamingProtocol(HttpToolsProtocol):
    """A client's connection: uvicorn's protocol with checks, limits and timers."""

    def __init__(self, *args: Any, limits: HttpLimits, memory: ConnectionMemory, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._memory = memory
        self._share = ConnectionShare(memory, None)
        self._is_in_head = False
        self._num_parts = 0
        self._open_part = 0
        """Number of the head, or of the trailers, whose end has not arrived; 0 if there is none."""
        self._num_open_bytes = 0
        """Bytes of the reads that lie within it: the parser may hold them and report nothing."""
        self._num_first_bytes = 0
        """Bytes of the read in which it began; some of them may belong to what came before it."""
        self._num_head_bytes = 0
        """Bytes of the target, headers and trailers that the parser has reported."""
        self._is_replaying = False
        """A new parser gets the framing of a request whose head was parsed; see `_ignore_upgrade`."""
        self._is_closing = False
        """True: received data is dropped."""
        self._closes_early = False
        self._running: RequestResponseCycle | None = None
        """The request that the application answers; others may be pipelined behind it."""
        self._refusal: HttpRefused | None = None
        """Sent after the responses to earlier requests."""
        self._receive_timer: asyncio.TimerHandle | None = None
        self._body_deadline_s = 0.0
        self._num_chunks = 0
        self._num_body_bytes = 0
        self._send_timer: asyncio.TimerHandle | None = None
        self._num_unread = 0
        """Bytes that the client had not read when the idle timer ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the idle timer, or refuse the connection above the limit."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._share = ConnectionShare(self._memory, self.client)
        if len(self.connections) > self._limits.max_connections:
            self._refuse(HttpRefused(503, "The server has too many connections. Try again.", (("retry-after", "1"),)))
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._stop_receive_timer()
        self._share.set(0)
        if self._send_timer is not None:
            self._send_timer.cancel()
        running = self._running
        if running is not None and not running.response_complete:  # uvicorn looks at the last request that has arrived
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; refuse a malformed request."""
        if self._is_closing:
            return
        part, cycle = self._open_part, self.cycle
        try:
            self._feed(data)
            if part and part == self._open_part:
                self._num_open_bytes += len(data)
                _check_head_size(self._num_open_bytes)
            else:
                self._num_open_bytes, self._num_first_bytes = 0, len(data)
        except HttpRefused as refused:
            self._refuse(refused)
        except httptools.HttpParserError as error:
            reason = error.__context__
            is_first = self.cycle is cycle and (cycle is None or cycle.response_complete)
            known = reason if isinstance(reason, HttpRefused) else None
            self._refuse(known or refusal_of(str(error), data if is_first else b""))
        if self._is_in_head or self.pipeline or self._share.num_bytes:
            self._hold_memory()

    def _should_upgrade(self) -> bool:
        return False

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade()
            self._feed(data[upgrade.args[0] :])

    def _ignore_upgrade(self) -> None:
        """
        Continue as if the request had no `Upgrade`: Java's HTTP client sends one with every request.

        The parser takes the following bytes for another protocol, so a new parser gets the framing of the body.
        """
        framing = [header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding")]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._is_replaying = True
        lines = [b"POST / HTTP/1.1", *(b"%b: %b" % header for header in framing), b"", b""]
        self.parser.feed_data(b"\r\n".join(lines))
        self._is_replaying = False

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self._is_replaying:
            return
        self._unset_keepalive_if_required()  # not before: the parser skips line breaks between requests
        self._is_in_head = True
        self._num_parts = self._open_part = self._num_parts + 1
        self._num_head_bytes = 0
        self._receive_timer = self.loop.call_later(self._limits.receive_timeout_s, self._head_is_late)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_replaying:
            self._count_head(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; drop a trailer, as the application already has the headers."""
        if self._is_replaying:
            return
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if self._is_in_head:
            super().on_header(name, value)
            if len(self.headers) > MAX_HEADERS:
                raise HttpRefused(431, f"The request has more than {MAX_HEADERS} headers. Send fewer.")

    def on_headers_complete(self) -> None:
        if self._is_replaying:
            return
        self._is_in_head = False
        self._open_part = 0
        self._stop_receive_timer()
        method = self.parser.get_method().decode("ascii")
        version = self.parser.get_http_version()
        self.url = check_head(method, self.url, version, self.headers)
        self.expect_100_continue = self.expect_100_continue and version == "1.1"  # RFC 9110, section 10.1.1
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            text = f"More than {MAX_PIPELINED} requests wait on this connection. Read the responses first."
            raise HttpRefused(503, text)
        self._num_chunks = self._num_body_bytes = 0
        self._body_deadline_s = self.loop.time() + self._limits.receive_timeout_s
        self._receive_timer = self.loop.call_at(self._body_deadline_s, self._check_body)

    def on_chunk_header(self) -> None:
        """Expect trailers, which follow a chunk of size 0; refuse a body in very many small chunks."""
        if self._num_chunks > max(MAX_SMALL_CHUNKS, self._num_body_bytes // SMALL_CHUNK_BYTES):
            raise HttpRefused(400, f"The body has more than {MAX_SMALL_CHUNKS} small chunks. Send larger chunks.")
        self._num_chunks += 1
        self._num_parts = self._open_part = self._num_parts + 1

    def on_chunk_complete(self) -> None:
        """Expect no more trailers: the chunk has ended."""
        self._open_part = 0

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body, and extend its deadline."""
        self._open_part = 0
        self._num_body_bytes += len(body)
        self._body_deadline_s += len(body) / MIN_BYTES_A_SECOND
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_replaying or not self.parser.should_upgrade():
            self._stop_receive_timer()
            super().on_message_complete()

    def _count_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        _check_head_size(self._num_head_bytes)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None

    def _head_is_late(self) -> None:
        seconds = self._limits.receive_timeout_s
        if self.flow.read_paused:  # the server does not read: the response to an earlier request takes long
            self._receive_timer = self.loop.call_later(seconds, self._head_is_late)
            return
        self._refuse(HttpRefused(408, f"The head of the request did not arrive within {seconds:g} s."))

    def _check_body(self) -> None:
        now_s = self.loop.time()
        if self.flow.read_paused:  # the application is slow, not the client
            self._body_deadline_s = now_s + self._limits.receive_timeout_s
        if now_s < self._body_deadline_s:
            self._receive_timer = self.loop.call_at(self._body_deadline_s, self._check_body)
        else:
            self._refuse(HttpRefused(408, "The body of the request did not arrive in time."))

    def _hold_memory(self) -> None:
        """Count what this connection holds while the server waits for its client; close it above the limits."""
        num_bytes = self._num_first_bytes + self._num_open_bytes if self._is_in_head else 0
        num_bytes += sum(PIPELINED_BYTES + len(cycle.body) for cycle, _ in self.pipeline)
        if self.flow.write_paused:
            num_bytes += self.transport.get_write_buffer_size()
        if not self._share.set(num_bytes) and not self.transport.is_closing():
            get_logger().warning("http.connection_dropped", held_bytes=num_bytes, all_held_bytes=self._memory.num_bytes)
            self._is_closing = True
            self.transport.abort()

    # Refusals and closing.

    def _refuse(self, refused: HttpRefused) -> None:
        """Answer with a refusal when its turn comes; nothing more is read from this client."""
        get_logger().info("http.refused", status=refused.status, reason=refused.message)
        self._stop_receive_timer()
        self._is_closing = True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._answer_refusal(refused)
        elif not cycle.more_body:
            self._refusal = refused  # of the request after this one
        elif self.pipeline:
            self.pipeline.popleft()  # the malformed request, which has not begun
            self.cycle = self.pipeline[0][0] if self.pipeline else cast("RequestResponseCycle", self._running)
            self._refusal = refused
        else:
            self._break_off(cycle, refused)

    def _break_off(self, cycle: RequestResponseCycle, refused: HttpRefused) -> None:
        """End a request whose body is malformed; its application sees a disconnect."""
        cycle.disconnected = True
        cycle.message_event.set()
        if cycle.response_started:
            self.transport.abort()
        else:
            self._answer_refusal(refused)

    def _answer_refusal(self, refused: HttpRefused) -> None:
        self.transport.write(refused.render(self.server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        """Close after the client has had time to read the response."""
        self._is_closing = True
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_S, self.transport.abort)

    def on_response_complete(self) -> None:
        """Close after an early response, or send a pending refusal."""
        super().on_response_complete()
        if self._share.num_bytes:
            self._hold_memory()
        if self._closes_early:
            self._linger()
        elif self._refusal is not None and (self.cycle is None or self.cycle.response_complete) and not self.pipeline:
            self._answer_refusal(self._refusal)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; abort it if its client has stopped reading a response."""
        num_unread = self.transport.get_write_buffer_size()
        if num_unread and num_unread != self._num_unread:
            self._num_unread = num_unread
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            return
        if num_unread:
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """Start the send timer: the client does not keep up."""
        super().pause_writing()
        self._hold_memory()
        self._send_timer = self.loop.call_later(self._limits.send_timeout_s, self._reader_is_late)

    def resume_writing(self) -> None:
        """Stop the send timer: the client keeps up again."""
        super().resume_writing()
        self._hold_memory()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _reader_is_late(self) -> None:
        get_logger().warning("http.reader_dropped", unread_bytes=self.transport.get_write_buffer_size())
        self.transport.abort()

    # The application.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start the next request; called by uvicorn (requests may be pipelined)."""
        self._running = cycle
        cast("dict[str, Any]", cycle.scope)["extensions"] = {WRITE_PART: part_writer_of(cycle)}
        super()._start_asgi_task(cycle, partial(self._run, cycle, app))

    async def _run(self, cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "*":
            await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", ALLOWED)]})
            await send({"type": "http.response.body"})
            return

        async def send_or_close(message: Message) -> None:
            is_head = message["type"] == "http.response.start"
            is_early = is_head and cycle.more_body
            if is_early:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            if is_head and scope["method"] != "HEAD" and has_length(message):
                cycle.transport = cast("asyncio.Transport", HeadJoiner(cycle))
            if TRAILERS in message and cycle.chunked_encoding and scope["http_version"] != "1.0":
                cycle.transport = cast("asyncio.Transport", TrailerWriter(cycle, message[TRAILERS]))
            for piece in pieces_of(message):
                if scope["http_version"] == "1.0":
                    end_by_close(cycle, piece)
                await send(piece)
            if is_early:
                self._closes_early = cycle.keep_alive = True  # not closed by uvicorn at once, but by `_linger`

        try:
            await app(scope, receive, send_or_close)
        except ResponseAborted:
            cycle.disconnected = True  # or uvicorn would log that the response is not complete
            self.transport.close()
        except Exception as error:
            if cycle.response_started or cycle.disconnected:
                raise
            get_logger().error("request.crashed", exc_info=error)
            self._break_off(cycle, HttpRefused(500, "Something went wrong inside the server."))


def _check_head_size(num_bytes: int) -> None:
    if num_bytes > MAX_HEAD_BYTES:
        raise HttpRefused(431, f"The head of the request has more than {MAX_HEAD_BYTES} bytes. Send fewer headers.")
