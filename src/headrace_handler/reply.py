"""Responses of the child, sent by frames as user code produces them, at the pace of their clients."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from headrace_handler.contract import Cancelled, Headers
from headrace_handler.frames import INLINE_BYTES, WINDOW_BYTES, WINDOW_CHUNKS, Buffer, Kind

Send = Callable[[Sequence[tuple[Kind, dict[str, Any], Buffer]]], None]
"""Sends frames in one go; a payload over `INLINE_BYTES` as a memory file. Raises `PeerGone`."""


class ItemReply:
    """The `Reply` of one item."""

    def __init__(self, item_id: int, send: Send) -> None:
        self._id = item_id
        self._send = send
        self._changed = threading.Condition()
        self._head: dict[str, Any] | None = None
        """The head, until it is sent with the first part."""
        self._untaken_chunks = 0
        self._untaken_bytes = 0
        self.has_head = False
        self.has_ended = False
        self.is_cancelled = False

    def head(self, status: int, headers: Headers = (), *, phrase: str = "") -> None:
        """See `Reply.head`."""
        if self.has_head:
            raise RuntimeError("The response has begun; its status cannot change.")
        self._head = {
            "id": self._id,
            "status": int(status),
            "phrase": phrase,
            "headers": [[str(name), str(value)] for name, value in headers],
        }
        self.has_head = True

    def data(self, chunk: Buffer) -> None:
        """See `Reply.data`."""
        if not self.has_head or self.has_ended:
            raise RuntimeError("A part can be sent only between the head and the end of a response.")
        self._wait_for_window()
        chunk = memoryview(chunk).cast("B")
        with self._changed:
            self._untaken_chunks += 1
            self._untaken_bytes += len(chunk)
        frames = [] if self._head is None else [(Kind.HEAD, self._head, b"")]
        self._head = None
        self._send([*frames, (Kind.DATA, {"id": self._id}, chunk)])

    def end(self, last: Buffer = b"") -> None:
        """See `Reply.end`."""
        if self.has_ended:
            return
        if not self.has_head:
            raise RuntimeError("A response cannot end before its head.")
        self.has_ended = True
        last = memoryview(last).cast("B")
        if self._head is not None:
            self._send([(Kind.RESPONSE, self._head, last)])
        else:
            self._send([(Kind.END, {"id": self._id}, last)])

    def abort(self, message: str) -> None:
        """See `Reply.abort`."""
        if not self.has_ended:
            self.has_ended = True
            self._send([(Kind.ABORT, {"id": self._id, "message": message[:INLINE_BYTES]}, b"")])

    def cancel(self) -> None:
        """Note that the client has gone; wakes user code that waits for it."""
        with self._changed:
            self.is_cancelled = True
            self._changed.notify_all()

    def credit(self, chunks: int, num_bytes: int) -> None:
        """Note that the client has taken chunks."""
        with self._changed:
            self._untaken_chunks -= chunks
            self._untaken_bytes -= num_bytes
            self._changed.notify_all()

    def _wait_for_window(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.is_cancelled or self._has_window)
            if self.is_cancelled:
                raise Cancelled

    @property
    def _has_window(self) -> bool:
        return self._untaken_chunks < WINDOW_CHUNKS and self._untaken_bytes < WINDOW_BYTES
