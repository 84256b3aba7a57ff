"""One keep-alive HTTP/1.1 connection to a worker, on httptools: it keeps the boundaries of the worker's chunks."""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from headrace.http.client_response import Answer, AnswerBroken, BrokenInHead, UpstreamFailed

MAX_PART_BYTES = 1024 * 1024
"""A chunk that is larger is passed on in parts of about this size."""

_SMALL_BODY_BYTES = 64 * 1024
"""Up to here head and body leave in one write, and so in one packet where they fit."""


class WorkerConnection(asyncio.Protocol):
    """One request at a time; `on_closed` is told when the connection is gone."""

    def __init__(self, on_closed: Callable[["WorkerConnection"], None]) -> None:
        self.is_open = False
        self.num_requests = 0
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._has_begun = False
        """A byte of the answer has come."""
        self._is_framed = False
        self._is_in_chunk = False
        self._chunk: list[bytes] = []
        self._chunk_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Open, and no answer is under way."""
        return self.is_open and self._answer is None

    def send(self, head: bytes, body: bytes) -> Answer:
        """Write one request; its answer fills from now on."""
        assert self.is_idle
        assert self._transport is not None
        self.num_requests += 1
        self._parser = httptools.HttpResponseParser(self)
        self._has_begun = self._is_framed = self._is_in_chunk = False
        self._chunk, self._chunk_bytes = [], 0
        answer = self._answer = Answer(self)
        if len(body) <= _SMALL_BODY_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        return answer

    def abort(self) -> None:
        """Close at once, unread and unsent bytes included: the worker sees it and gives up what it was doing."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is not a subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Called by the event loop: feed the parser, which calls the `on_` methods."""
        answer = self._answer
        if answer is None:
            self.abort()  # bytes that nobody asked for
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(answer, f"what the worker sent is not HTTP/1.1 ({error})")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop: decide whether the answer was whole."""
        self.is_open = False
        answer, self._answer = self._answer, None
        if answer is not None:
            if exc is None and answer.status and not self._is_framed:
                answer.complete()  # a body without a length ends with its connection
            else:
                self._fail(answer, f"the connection closed ({exc or 'end of file'})")
        self._on_closed(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        answer = self._answer
        if answer is None or answer.status:
            return  # trailers
        key = name.decode("latin-1").lower()
        answer.headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        answer = self._answer
        status = self._parser.get_status_code()
        if answer is None:
            return
        if status < 200:
            answer.headers.clear()
            return
        self._is_framed = "content-length" in answer.headers or "transfer-encoding" in answer.headers
        answer.status = status
        answer.wake()

    def on_chunk_header(self) -> None:
        """Called by the parser."""
        self._is_in_chunk = True

    def on_body(self, body: bytes) -> None:
        """Called by the parser, for each piece of a chunk that was read at once."""
        answer = self._answer
        if answer is None:
            return
        if not self._is_in_chunk:
            answer.add(body)
            return
        self._chunk.append(body)
        self._chunk_bytes += len(body)
        if self._chunk_bytes >= MAX_PART_BYTES:
            self._flush(answer)

    def on_chunk_complete(self) -> None:
        """Called by the parser."""
        self._is_in_chunk = False
        if self._chunk and self._answer is not None:
            self._flush(self._answer)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        answer = self._answer
        if answer is None or not answer.status:
            return  # an interim response (1xx)
        self._answer = None
        if not self._parser.should_keep_alive():
            self.is_open = False
        answer.complete()

    def _flush(self, answer: Answer) -> None:
        part = self._chunk[0] if len(self._chunk) == 1 else b"".join(self._chunk)
        self._chunk, self._chunk_bytes = [], 0
        answer.add(part)

    def _fail(self, answer: Answer, reason: str) -> None:
        kind = AnswerBroken if answer.status else BrokenInHead if self._has_begun else UpstreamFailed
        answer.fail(kind(reason))
