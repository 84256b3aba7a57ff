"""The model server's end of the socket to a child, on the event loop."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from headrace_handler.frames import (
    READ_BYTES,
    BadFrame,
    Buffer,
    Frame,
    FrameParser,
    PeerGone,
    after,
    receive,
    send_some,
)

_READS_AT_ONCE = 8
"""Reads in one callback, before the event loop runs other work."""


class Channel:
    """Frames to and from a child, in order."""

    def __init__(
        self, connection: socket.socket, on_frame: Callable[[Frame], None], on_end: Callable[[str], None]
    ) -> None:
        """
        Start receiving.

        Args:
            connection: to the child; owned by the channel from now on.
            on_frame: called with each frame; it closes the frame's descriptors.
            on_end: called once when nothing more can be received, with the reason.
        """
        self._socket = connection
        self._socket.setblocking(False)
        self._on_frame = on_frame
        self._on_end = on_end
        self._parser = FrameParser()
        self._waiting: deque[tuple[list[Buffer], list[int]]] = deque()
        """Frames that did not fit into the socket buffer; their descriptors are duplicates that the channel owns."""
        self._has_ended = False
        """Nothing more can be received."""
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._receive)

    def send(self, buffers: Sequence[Buffer], descriptors: Sequence[int] = ()) -> None:
        """
        Send a frame now, or once the socket has room; do nothing after the child's end.

        Raises:
            OSError: the frame must wait, but its descriptors cannot be duplicated; nothing of it was sent.
        """
        if self._is_closed:
            return
        rest = list(buffers)
        if not self._waiting:
            try:
                rest = after(rest, send_some(self._socket, rest, descriptors))
                descriptors = ()
            except BlockingIOError:
                pass
            except (PeerGone, OSError):
                return  # the end of the child is reported by its process
            if not rest:
                return
        self._waiting.append((rest, _duplicates(descriptors)))
        if len(self._waiting) == 1:
            self._loop.add_writer(self._socket.fileno(), self._send_waiting)

    def drain(self) -> None:
        """Receive what is left in the socket after the child's end."""
        while not self._is_closed and not self._has_ended and self._receive_once():
            pass

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        for _buffers, descriptors in self._waiting:
            for descriptor in descriptors:
                os.close(descriptor)
        self._waiting.clear()
        self._parser.close()
        self._socket.close()

    def _send_waiting(self) -> None:
        while self._waiting:
            buffers, descriptors = self._waiting[0]
            try:
                rest = after(buffers, send_some(self._socket, buffers, descriptors))
            except BlockingIOError:
                return
            except (PeerGone, OSError):
                self._loop.remove_writer(self._socket.fileno())
                return
            for descriptor in descriptors:
                os.close(descriptor)
            if rest:
                self._waiting[0] = (rest, [])
            else:
                self._waiting.popleft()
        self._loop.remove_writer(self._socket.fileno())

    def _receive(self) -> None:
        for _ in range(_READS_AT_ONCE):
            if self._is_closed or self._receive_once() < READ_BYTES:
                return  # the event loop calls again if there is more

    def _receive_once(self) -> int:
        """Receive once and return the number of bytes; 0 if there is nothing to receive."""
        try:
            data, descriptors = receive(self._socket)
            for frame in self._parser.feed(data, descriptors):
                self._on_frame(frame)
        except BlockingIOError:
            return 0
        except (PeerGone, OSError):
            self._end("it has closed its socket")
            return 0
        except (BadFrame, KeyError, TypeError, ValueError) as error:
            self._end(f"it has sent bytes that are no frame: {error}")
            return 0
        return len(data)

    def _end(self, reason: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._loop.remove_reader(self._socket.fileno())
            self._on_end(reason)


def _duplicates(descriptors: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        for descriptor in descriptors:
            copies.append(os.dup(descriptor))  # noqa: PERF401 -- the copies before a failure must be closed
    except OSError:
        for copy in copies:
            os.close(copy)
        raise
    return copies
