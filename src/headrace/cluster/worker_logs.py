"""
The logs of workers as events: `control.log_reader.LogReader` on the files that workers write.

A worker writes straight into its file, which nobody stamps for it. A line's time is the one that it names itself (our
own JSON lines do, so do those of most loggers), else that of the line before it, else that of the file. A position is
the number of bytes that were written before an event; it stays true when the beginning of a file is cut off.
Memory is bounded whatever a worker writes: files are read in blocks, long lines are taken in pieces.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from headrace.cluster.worker_files import WorkerFiles, worker_files, write_whole

MAX_LOG_BYTES: Final = 64 << 20
"""A larger log is cut."""
KEPT_LOG_BYTES: Final = 16 << 20
"""What is left of it."""
MAX_EVENT_BYTES: Final = 256 << 10
"""Longer lines become several events. Source: CloudWatch Logs, PutLogEvents."""
_BLOCK_BYTES: Final = 256 << 10
_LEAD_BYTES: Final = 64 << 10
"""Read before a window, to find the time of its first lines."""
_SETTLED_S: Final = 2.0
"""A line without an end is taken for a whole one if nothing was added to it for so long."""
_JSON_TIME: Final = re.compile(rb'"timestamp": ?"([^"]{10,40})"')
_LEADING_TIME: Final = re.compile(rb"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)")


@dataclass(frozen=True, slots=True)
class WorkerLogEvent:
    """One line of a worker."""

    timestamp_ms: int
    """Milliseconds since 1970."""
    message: str
    """Without its line end."""
    position: int
    """Where it begins."""
    next_position: int
    """Where the one after it begins."""


class WorkerLogs:
    """Reads and cuts the logs below the folder of all workers. All methods block for a moment (files)."""

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
        Read at most `limit` events, in the order in which they were written; see `control.log_reader.LogReader`.

        Args:
            worker: the name of its record; one that has written nothing, or is unknown, has no events.
            start_ms: only events at or after this time.
            end_ms: only events before this time.
            position: forwards, the first event that may be read; backwards, the event before which it ends.
            limit: at most so many.
            is_backward: the last ones before `position` instead of the first ones from it.
        """
        files = self._files(worker)
        if files is None or limit < 1:
            return ()

        def is_wanted(event: WorkerLogEvent) -> bool:
            is_early = start_ms is not None and event.timestamp_ms < start_ms
            return not is_early and (end_ms is None or event.timestamp_ms < end_ms)

        for _ in range(3):  # a cut while we read moves everything: read again
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
        """What its log holds now."""
        files = self._files(worker)
        return 0 if files is None else _size(files.log)

    def end_position(self, worker: str) -> int:
        """Where the next event will begin."""
        files = self._files(worker)
        return 0 if files is None else _base(files) + _size(files.log)

    def read_bytes(self, worker: str, position: int, limit: int) -> tuple[int, bytes]:
        """Up to `limit` bytes from a position, or from where the log begins now, and where they begin."""
        files = self._files(worker)
        if files is None:
            return position, b""
        for _ in range(3):  # as in `read`
            base = _base(files)
            start = max(position, base)
            try:
                with files.log.open("rb") as file:
                    found = _read_at(file, start - base, limit)
            except FileNotFoundError:
                return position, b""
            if _base(files) == base:
                return start, found
        return position, b""

    def append(self, worker: str, position: int, content: bytes) -> None:
        """
        Add what was read elsewhere (`read_bytes`); what is here already is left out, a gap counts as cut off.

        Only one caller at a time.
        """
        files = self._files(worker)
        if files is None:
            return
        files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        end = self.end_position(worker)
        if position > end:
            files.log.unlink(missing_ok=True)
            write_whole(files.log_base, str(position).encode())
            end = position
        with files.log.open("ab") as file:
            file.write(content[end - position :])

    def trim(self, worker: str, *, max_bytes: int = MAX_LOG_BYTES, kept_bytes: int = KEPT_LOG_BYTES) -> bool:
        """
        Cut off the beginning of a log that is larger than `max_bytes`; returns whether it was.

        The worker goes on writing meanwhile: what it adds between the last read and the cut is lost, microseconds.
        """
        files = self._files(worker)
        if files is None or _size(files.log) <= max_bytes:
            return False
        with files.log.open("r+b") as file:
            file.seek(-kept_bytes, 2)
            file.readline(MAX_EVENT_BYTES)
            source = start = file.tell()
            target = 0
            while block := _read_at(file, source, _BLOCK_BYTES):
                file.seek(target)
                file.write(block)
                source, target = source + len(block), target + len(block)
            file.flush()
            write_whole(files.log_base, str(_base(files) + start).encode())
            file.truncate(target)
        return True

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
            found: list[WorkerLogEvent] = []
            for event in self._events(file, base, first, stop):
                if is_wanted(event):
                    found.append(event)
                    if len(found) == limit:
                        break
            return found
        window = _BLOCK_BYTES
        while True:
            first = _line_start(file, max(stop - window, 0))
            last = deque((event for event in self._events(file, base, first, stop) if is_wanted(event)), limit)
            if len(last) == limit or stop - window <= 0:
                return list(last)
            window *= 4

    def _events(self, file: BinaryIO, base: int, first: int, stop: int) -> Iterator[WorkerLogEvent]:
        """Events from `first`, where one begins, to `stop`, both counted from the file's beginning."""
        size = file.seek(0, 2)
        stamp = self._file_time_ms(file)
        is_settled = stop < size or self._now_s() * 1000 - stamp > _SETTLED_S * 1000
        for _, line in _lines(file, max(first - _LEAD_BYTES, 0), first, is_settled=False):
            stamp = _time_ms(line) or stamp
        for offset, line in _lines(file, first, stop, is_settled=is_settled):
            stamp = _time_ms(line) or stamp
            if text := line.rstrip(b"\r\n"):
                end = base + offset + len(line)
                yield WorkerLogEvent(stamp, text.decode(errors="replace"), base + offset, end)

    @staticmethod
    def _file_time_ms(file: BinaryIO) -> int:
        with suppress(OSError):
            return int(Path(file.name).stat().st_mtime * 1000)
        return 0


def _lines(file: BinaryIO, first: int, stop: int, *, is_settled: bool) -> Iterator[tuple[int, bytes]]:
    """Where each line between two places begins, and the line; those longer than `MAX_EVENT_BYTES` come in pieces."""
    held, offset, place = b"", first, first
    while place < stop and (block := _read_at(file, place, min(_BLOCK_BYTES, stop - place))):
        place += len(block)
        *whole, held = (held + block).split(b"\n")
        for line in whole:
            for piece in _pieces(line + b"\n"):
                yield offset, piece
                offset += len(piece)
        while len(held) > MAX_EVENT_BYTES:
            yield offset, held[:MAX_EVENT_BYTES]
            offset, held = offset + MAX_EVENT_BYTES, held[MAX_EVENT_BYTES:]
    if held and is_settled:
        yield offset, held


def _pieces(line: bytes) -> Iterator[bytes]:
    for start in range(0, len(line), MAX_EVENT_BYTES):
        yield line[start : start + MAX_EVENT_BYTES]


def _line_start(file: BinaryIO, place: int) -> int:
    """The first place from `place` on where a line begins; `place` itself if the line there is a very long one."""
    if place == 0:
        return 0
    end = _read_at(file, place - 1, _BLOCK_BYTES).find(b"\n")
    return place if end < 0 else place + end


def _time_ms(line: bytes) -> int | None:
    """The time that a line names; one without a zone is in that of this machine."""
    found = _JSON_TIME.search(line) if line.startswith(b"{") else _LEADING_TIME.match(line)
    if found is None:
        return None
    try:
        return int(datetime.fromisoformat(found[1].decode()).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def _read_at(file: BinaryIO, place: int, num_bytes: int) -> bytes:
    file.seek(place)
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
