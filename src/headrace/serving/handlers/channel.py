"""
The model server's ends of the socket and the pipes to a child, on the event loop.

Each line that user code prints goes to the log with the model's name, and the last lines are kept.
"""

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
        self._parser = FrameParser(is_of_child=True)
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
        except (BadFrame, KeyError, TypeError, ValueError, ArithmeticError) as error:
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


MAX_LINE_BYTES = 8 * 1024
"""A longer line is logged in pieces."""
TAIL_LINES = 40

_READ_BYTES = 4 * 1024
_LINES_A_SECOND = 5000
_BYTES_A_SECOND = 1 << 20
"""A child that prints more is slowed down: the log is written by the thread that serves requests, to a disk."""
_BURST_S = 0.1
"""Seconds of such output that pass at once."""

OnLine = Callable[[str], None]


class LineSplitter:
    """Lines from bytes as they arrive; bytes that are not UTF-8 are escaped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Add bytes and return the lines that they complete, without empty ones."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= MAX_LINE_BYTES:
            lines.append(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return [text for line in lines if (text := _text(line))]

    def end(self) -> list[str]:
        """Return the last line, if it has no line end."""
        rest, self._rest = self._rest, b""
        return [text] if (text := _text(rest)) else []


def _text(line: bytes) -> str:
    """Return a line as a terminal finally shows it: progress bars overwrite it with carriage returns."""
    return line.rstrip().rpartition(b"\r")[2].decode(errors="backslashreplace")


class OutputReader:
    """A pipe from a child to the log."""

    def __init__(self, descriptor: int, on_line: OnLine) -> None:
        """Start reading; the reader owns the descriptor from now on."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._on_line = on_line
        self._lines = LineSplitter()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._paid_s = 0.0
        """The time until which the output so far may take."""
        self._resume: asyncio.TimerHandle | None = None
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Log the rest of the output, and close the pipe: processes that left the child's session may keep it open."""
        if self._is_closed:
            return
        self._is_closed = True
        for _ in range(64 * 1024 // _READ_BYTES):  # the size of a pipe
            if self._read_once() is None:
                break
        self._loop.remove_reader(self._descriptor)
        if self._resume is not None:
            self._resume.cancel()
        os.close(self._descriptor)
        self._log(self._lines.end())

    def _read(self) -> None:
        cost_s = self._read_once()
        if cost_s is None:
            self._loop.remove_reader(self._descriptor)
            return
        now_s = self._loop.time()
        self._paid_s = max(now_s, self._paid_s) + cost_s
        if (early_s := self._paid_s - now_s) > _BURST_S:
            self._loop.remove_reader(self._descriptor)
            self._resume = self._loop.call_later(early_s, self._loop.add_reader, self._descriptor, self._read)

    def _read_once(self) -> float | None:
        """Read and log once; return the seconds that such output may take, None if there is nothing to read."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return None if self._is_closed else 0.0
        if not data:
            return None
        lines = self._lines.feed(data)
        self._log(lines)
        return max(len(lines) / _LINES_A_SECOND, len(data) / _BYTES_A_SECOND)

    def _log(self, lines: list[str]) -> None:
        for line in lines:
            self._on_line(line)


def new_tail() -> deque[str]:
    return deque(maxlen=TAIL_LINES)
