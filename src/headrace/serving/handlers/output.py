"""The output of user code: each line goes to the log with the model's name, and the last lines are kept."""

import asyncio
import os
from collections import deque
from collections.abc import Callable

MAX_LINE_BYTES = 8 * 1024
"""A longer line is logged in pieces."""
TAIL_LINES = 40

_READ_BYTES = 4 * 1024
_LINES_A_SECOND = 5000
"""A child that prints more is slowed down: the log is written by the thread that serves requests."""

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
        num_lines = self._read_once()
        if num_lines is None:
            self._loop.remove_reader(self._descriptor)
        elif num_lines > 10:
            self._loop.remove_reader(self._descriptor)
            self._resume = self._loop.call_later(
                num_lines / _LINES_A_SECOND, self._loop.add_reader, self._descriptor, self._read
            )

    def _read_once(self) -> int | None:
        """Read and log once; return the number of lines, None if there is nothing to read."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return None if self._is_closed else 0
        if not data:
            return None
        return self._log(self._lines.feed(data))

    def _log(self, lines: list[str]) -> int:
        for line in lines:
            self._on_line(line)
        return len(lines)


def new_tail() -> deque[str]:
    """Return an empty list of the last lines."""
    return deque(maxlen=TAIL_LINES)
