"""Responses of the child, sent in frames as user code produces them, with backpressure from the clients."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace_handler.contract import Cancelled, Headers
from headrace_handler.frames import INLINE_BYTES, WINDOW_BYTES, WINDOW_CHUNKS, Buffer, Kind


class Link(Protocol):
    """The connection to the model server; see `Connection`."""

    def send(self, frames: Sequence[tuple[Kind, dict[str, Any], Buffer]]) -> None: ...
    def wait_for(self, condition: Callable[[], bool]) -> None: ...
    def poll(self) -> None: ...


class ItemReply:
    """The `Reply` of one item."""

    def __init__(self, item_id: int, link: Link) -> None:
        self._id = item_id
        self._link = link
        self._counting = threading.Lock()
        self._head: dict[str, Any] | None = None
        """The head, until it is sent with the first part."""
        self._untaken_chunks = 0
        self._untaken_bytes = 0
        self.has_head = False
        self.has_ended = False
        self._is_cancelled = False

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
        self._count(1, len(chunk))
        frames = [] if self._head is None else [(Kind.HEAD, self._head, b"")]
        self._head = None
        self._link.send([*frames, (Kind.DATA, {"id": self._id}, chunk)])

    def end(self, last: Buffer = b"") -> None:
        """See `Reply.end`."""
        if self.has_ended:
            return
        if not self.has_head:
            raise RuntimeError("A response cannot end before its head.")
        self.has_ended = True
        last = memoryview(last).cast("B")
        if self._head is not None:
            self._link.send([(Kind.RESPONSE, self._head, last)])
        else:
            self._link.send([(Kind.END, {"id": self._id}, last)])

    def abort(self, message: str) -> None:
        """See `Reply.abort`."""
        if not self.has_ended:
            self.has_ended = True
            self._link.send([(Kind.ABORT, {"id": self._id, "message": message[:INLINE_BYTES]}, b"")])

    @property
    def is_cancelled(self) -> bool:
        """See `Reply.is_cancelled`."""
        if not self._is_cancelled:
            self._link.poll()
        return self._is_cancelled

    def cancel(self) -> None:
        """Mark the reply as cancelled: the client has disconnected."""
        self._is_cancelled = True

    def credit(self, chunks: int, num_bytes: int) -> None:
        """Record that the client has read chunks."""
        self._count(-chunks, -num_bytes)

    def _count(self, chunks: int, num_bytes: int) -> None:
        with self._counting:
            self._untaken_chunks += chunks
            self._untaken_bytes += num_bytes

    def _wait_for_window(self) -> None:
        if not self.is_cancelled:
            self._link.wait_for(lambda: self._is_cancelled or self._has_window)
        if self._is_cancelled:
            raise Cancelled

    @property
    def _has_window(self) -> bool:
        return self._untaken_chunks < WINDOW_CHUNKS and self._untaken_bytes < WINDOW_BYTES
