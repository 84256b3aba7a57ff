"""
The logs of workers as events, read from the files that workers write.

Workers write directly into their files, and no timestamps are added. The time of a line is the one that it contains (as
our JSON lines and those of most loggers do), or else that of the line before it, or else that of the file. A position
is the number of bytes written before an event; it stays valid when the beginning of a file is cut off. Memory is
bounded: files are read in blocks, and long lines are split.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from headrace.core.log_files import KEPT_LOG_BYTES, MAX_LOG_BYTES, trim_log
from headrace.platform.cluster.worker_files import WorkerFiles, worker_files, write_atomically

MAX_EVENT_BYTES: Final = 256 << 10
"""Longer lines are split into several events. Source: CloudWatch Logs, PutLogEvents."""
_BLOCK_BYTES: Final = 256 << 10
_LEAD_BYTES: Final = 64 << 10
"""Bytes read before a window, to find the time of its first lines."""
_SETTLED_S: Final = 2.0
"""Age of the file after which a line without a line end counts as complete."""
_JSON_TIME: Final = re.compile(rb'"timestamp": ?"([^"]{10,40})"')
_LEADING_TIME: Final = re.compile(rb"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)")


@dataclass(frozen=True, slots=True)
class WorkerLogEvent:
    """One line of a worker's log."""

    timestamp_ms: int
    """Milliseconds since 1970."""
    message: str
    """The line without its line end."""
    position: int
    """Position of the event."""
    next_position: int
    """Position of the next event."""


class WorkerLogs:
    """Reads and trims the logs below the folder of all workers. All methods block on files."""

    def __init__(self, folder: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now_s = now_s

    def read(
        self,
        worker: str,
        *,
        start_ms: int | None = None,
        end_ms: int | None = None,
        position: int | None = None,
        limit: int = 1000,
        is_backward: bool = False,
    ) -> Sequence[WorkerLogEvent]:
        """
        Read at most `limit` events, in the order in which they were written.

        Args:
            worker: the name of the worker's record; an unknown worker has no events.
            start_ms: only events at or after this time.
            end_ms: only events before this time.
            position: forwards, the first event to read; backwards, the event after the last one to read.
            limit: the largest number of events.
            is_backward: read the last events before `position` instead of the first ones from it.
        """
        files = self._files(worker)
        if files is None or limit < 1:
            return ()

        def is_wanted(event: WorkerLogEvent) -> bool:
            is_early = start_ms is not None and event.timestamp_ms < start_ms
            return not is_early and (end_ms is None or event.timestamp_ms < end_ms)

        for _ in range(3):  # a concurrent trim moves all bytes: read again
            base = _base(files)
            try:
                with files.log.open("rb") as file:
                    events = self._read_file(file, base, position, limit, is_wanted, is_backward=is_backward)
            except FileNotFoundError:
                return ()
            if _base(files) == base:
                return events
        return ()

    def size_bytes(self, worker: str) -> int:
        files = self._files(worker)
        return 0 if files is None else _size(files.log)

    def written_ms(self, worker: str) -> int | None:
        """Return when a log was last written, in milliseconds since 1970."""
        files = self._files(worker)
        try:
            return None if files is None else int(files.log.stat().st_mtime * 1000)
        except OSError:
            return None

    def end_position(self, worker: str) -> int:
        """Return the position of the next event."""
        files = worker_files(self._folder, worker)
        return _base(files) + _size(files.log)

    def read_bytes(self, worker: str, position: int, limit: int) -> tuple[int, bytes]:
        """Read up to `limit` bytes from `position`, or from the beginning if that is later; returns their position."""
        files = worker_files(self._folder, worker)
        for _ in range(3):  # as in `read`
            base = _base(files)
            start = max(position, base)
            try:
                with files.log.open("rb") as file:
                    content = _read_at(file, start - base, limit)
            except FileNotFoundError:
                return position, b""
            if _base(files) == base:
                return start, content
        return position, b""

    def append(self, worker: str, position: int, content: bytes) -> None:
        """
        Append bytes that `read_bytes` returned elsewhere. Bytes already here are skipped; a gap cuts off the beginning.

        Not thread-safe.
        """
        files = worker_files(self._folder, worker)
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        end = self.end_position(worker)
        if position > end:
            files.log.unlink(missing_ok=True)
            write_atomically(files.log_base, str(position).encode())
            end = position
        with files.log.open("ab") as file:
            file.write(content[end - position :])

    def add_line(self, worker: str, line: bytes) -> None:
        """Append a line to the log of a worker that has ended, perhaps in the middle of one. Not thread-safe."""
        end = self.end_position(worker)
        _, last = self.read_bytes(worker, end - 1, 1) if end else (0, b"\n")
        self.append(worker, end, line if last in (b"", b"\n") else b"\n" + line)

    def trim(self, worker: str, *, max_bytes: int = MAX_LOG_BYTES, kept_bytes: int = KEPT_LOG_BYTES) -> bool:
        """
        Cut off the beginning of a log that is larger than `max_bytes`; returns whether it was.

        The worker keeps writing: what it adds in the microseconds between the last read and the truncation is lost.
        """
        files = self._files(worker)
        if files is None:
            return False
        return trim_log(
            files.log,
            max_bytes=max_bytes,
            kept_bytes=kept_bytes,
            note_cut=lambda num_bytes: write_atomically(files.log_base, str(_base(files) + num_bytes).encode()),
        )

    def _files(self, worker: str) -> WorkerFiles | None:
        try:
            return worker_files(self._folder, worker)
        except ValueError:
            return None

    def _read_file(
        self,
        file: BinaryIO,
        base: int,
        position: int | None,
        limit: int,
        is_wanted: Callable[[WorkerLogEvent], bool],
        *,
        is_backward: bool,
    ) -> Sequence[WorkerLogEvent]:
        size = file.seek(0, 2)
        stop = size if position is None or not is_backward else min(max(position - base, 0), size)
        first = 0 if position is None or is_backward else max(position - base, 0)
        if not is_backward:
            events: list[WorkerLogEvent] = []
            for event in self._events(file, base, first, stop):
                if is_wanted(event):
                    events.append(event)
                    if len(events) == limit:
                        break
            return events
        window = _BLOCK_BYTES
        while True:
            first = _line_start(file, max(stop - window, 0))
            last = deque((event for event in self._events(file, base, first, stop) if is_wanted(event)), limit)
            if len(last) == limit or stop - window <= 0:
                return list(last)
            window *= 4

    def _events(self, file: BinaryIO, base: int, first: int, stop: int) -> Iterator[WorkerLogEvent]:
        """Yield the events from `first`, the start of an event, to `stop`, both counted from the file's beginning."""
        size = file.seek(0, 2)
        stamp = int(os.fstat(file.fileno()).st_mtime * 1000)
        is_settled = stop < size or self._now_s() * 1000 - stamp > _SETTLED_S * 1000
        for _, line in _lines(file, max(first - _LEAD_BYTES, 0), first, is_settled=False):
            stamp = _time_ms(line) or stamp
        for offset, line in _lines(file, first, stop, is_settled=is_settled):
            stamp = _time_ms(line) or stamp
            if text := line.rstrip(b"\r\n"):
                end = base + offset + len(line)
                yield WorkerLogEvent(stamp, text.decode(errors="replace"), base + offset, end)


def _lines(file: BinaryIO, first: int, stop: int, *, is_settled: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and bytes of each line from `first` to `stop`; lines over `MAX_EVENT_BYTES` are split."""
    rest, offset, next_read = b"", first, first
    while next_read < stop and (block := _read_at(file, next_read, min(_BLOCK_BYTES, stop - next_read))):
        next_read += len(block)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            whole = line + b"\n"
            for start in range(0, len(whole), MAX_EVENT_BYTES):
                piece = whole[start : start + MAX_EVENT_BYTES]
                yield offset, piece
                offset += len(piece)
        while len(rest) > MAX_EVENT_BYTES:
            yield offset, rest[:MAX_EVENT_BYTES]
            offset, rest = offset + MAX_EVENT_BYTES, rest[MAX_EVENT_BYTES:]
    if rest and is_settled:
        yield offset, rest


def _line_start(file: BinaryIO, offset: int) -> int:
    """Return the offset of the first line at or after `offset`; `offset` itself within a very long line."""
    if offset == 0:
        return 0
    end = _read_at(file, offset - 1, _BLOCK_BYTES).find(b"\n")
    return offset if end < 0 else offset + end


def _time_ms(line: bytes) -> int | None:
    """Parse the time in a line; a time without a zone is local."""
    match = _JSON_TIME.search(line) if line.startswith(b"{") else _LEADING_TIME.match(line)
    if match is None:
        return None
    try:
        return int(datetime.fromisoformat(match[1].decode()).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def _read_at(file: BinaryIO, offset: int, num_bytes: int) -> bytes:
    file.seek(offset)
    return file.read(num_bytes)


def _base(files: WorkerFiles) -> int:
    try:
        return int(files.log_base.read_text())
    except (OSError, ValueError):
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
