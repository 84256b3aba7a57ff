"""
The logs of all workers of a platform: those that there are, and those that have ended.

Before the folder of a worker goes, its log is moved into a folder of ended ones, with a note that says whose it was, so
that what a worker wrote outlives it. Ended logs are bounded in size and age; the oldest go first. A log is got ready
beside the worker's other files and comes over by one rename: whoever is killed when, it is whole, and in one place.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.cluster.worker_files import WorkerFiles, read_value, worker_files, write_value
from headrace.cluster.worker_logs import WorkerLogEvent, WorkerLogs
from headrace.core.telemetry import get_logger

MAX_AGE_S: Final = 7 * 86400.0
"""An ended log is removed so long after its worker's end."""
MIN_COUNTED_BYTES: Final = 64 << 10
"""What a log counts at least, so that there are not too many small ones either."""
_MOVING: Final = "ended"
"""In the folder of a worker: its log, on its way."""
_NOTE: Final = "stream.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLog:
    """The log of a worker that is no more."""

    worker: str
    """Name of its record."""
    log_group: str
    log_stream: str
    created_ms: int
    """When the worker was made, milliseconds since 1970, as all times here."""
    ended_ms: int
    """When its log came here."""
    first_ms: int
    """Of its first line."""
    last_ms: int
    """Of its last line."""


class PlatformLogs:
    """Implements `control.log_reader.LogKeeper`. All methods block for a moment (files), and may be called at once."""

    def __init__(
        self,
        workers: Path,
        ended: Path,
        *,
        max_bytes: int,
        max_age_s: float = MAX_AGE_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """
        Look after the logs of one platform.

        Args:
            workers: the folder with the folders of workers.
            ended: the folder for ended logs, on the same file system.
            max_bytes: that ended logs take, about; 0 keeps none.
            max_age_s: how long one is kept, seconds.
            now_s: a clock, seconds since 1970.
        """
        self._workers = workers
        self._ended = ended
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._now_s = now_s
        self._live_logs = WorkerLogs(workers, now_s=now_s)
        self._ended_logs = WorkerLogs(ended, now_s=now_s)
        self._lock = threading.Lock()
        self._index: dict[str, EndedLog] = {}
        """By worker, in the order in which they ended."""
        self._sizes: dict[str, int] = {}
        """What each counts, bytes."""
        self._total = 0
        """Of all sizes."""
        self._is_read = False

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
        """Read at most `limit` events of a worker, of an ended one too; see `WorkerLogs.read`."""
        for logs in (self._live_logs, self._ended_logs):
            events = logs.read(
                worker, start_ms=start_ms, end_ms=end_ms, position=position, limit=limit, is_backward=is_backward
            )
            if events:
                return events
        return ()

    def size_bytes(self, worker: str) -> int:
        """What its log holds now."""
        return self._live_logs.size_bytes(worker) or self._ended_logs.size_bytes(worker)

    def ended(self) -> Sequence[EndedLog]:
        """All ended logs, in the order in which their workers ended."""
        with self._lock:
            self._read_index()
            self._make_room()
            return list(self._index.values())

    def keep(self, worker: str, *, log_group: str, log_stream: str, created_s: float) -> None:
        """
        Put the log of a worker that has ended among the ended ones; done again, or without a log, nothing happens.

        Raises:
            OSError: it cannot be moved; a full disk.
        """
        files = worker_files(self._workers, worker)
        moving = WorkerFiles(files.folder / _MOVING)
        with self._lock:
            if self._max_bytes == 0 or not (files.log.exists() or moving.log.exists()):
                return
            self._read_index()
            moving.folder.mkdir(mode=0o700, exist_ok=True)
            for source, target in ((files.log_base, moving.log_base), (files.log, moving.log)):
                with suppress(FileNotFoundError):
                    source.replace(target)
            ended = self._describe(worker, files, log_group=log_group, log_stream=log_stream, created_s=created_s)
            if ended is None:
                return
            write_value(moving.folder / _NOTE, ended)
            self._ended.mkdir(mode=0o700, parents=True, exist_ok=True)
            moving.folder.replace(self._ended / worker)
            self._add(ended)
            self._make_room()

    def drop(self, workers: Sequence[str]) -> None:
        """Remove ended logs."""
        with self._lock:
            self._read_index()
            for worker in workers:
                self._remove(worker)

    def _describe(
        self, worker: str, files: WorkerFiles, *, log_group: str, log_stream: str, created_s: float
    ) -> EndedLog | None:
        """The note on a log that is on its way, cut to what may be kept; None if there is no line in it."""
        logs = WorkerLogs(files.folder, now_s=self._now_s)
        logs.trim(_MOVING, max_bytes=self._max_bytes, kept_bytes=self._max_bytes)
        first, last = logs.read(_MOVING, limit=1), logs.read(_MOVING, limit=1, is_backward=True)
        if not (first and last):
            return None
        return EndedLog(
            worker=worker,
            log_group=log_group,
            log_stream=log_stream,
            created_ms=int(created_s * 1000),
            ended_ms=int(self._now_s() * 1000),
            first_ms=first[0].timestamp_ms,
            last_ms=last[-1].timestamp_ms,
        )

    def _read_index(self) -> None:
        """See what the folder holds, once. What is not whole there was being removed."""
        if not self._is_read:
            for ended in sorted(self._found(), key=lambda ended: ended.ended_ms):
                self._add(ended)
            self._is_read = True

    def _add(self, ended: EndedLog) -> None:
        size = max(self._ended_logs.size_bytes(ended.worker), MIN_COUNTED_BYTES)
        self._index[ended.worker] = ended
        self._sizes[ended.worker] = size
        self._total += size

    def _found(self) -> Iterator[EndedLog]:
        for folder in sorted(self._ended.glob("*/")):
            ended = read_value(folder / _NOTE, EndedLog)
            if ended is not None and ended.worker == folder.name and WorkerFiles(folder).log.exists():
                yield ended
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _make_room(self) -> None:
        """Remove what is too old, and the oldest until the rest is small enough."""
        oldest_ms = (self._now_s() - self._max_age_s) * 1000
        while self._index:
            first = next(iter(self._index.values()))
            if first.ended_ms >= oldest_ms and self._total <= self._max_bytes:
                break
            self._remove(first.worker)

    def _remove(self, worker: str) -> None:
        if self._index.pop(worker, None) is None:
            return
        self._total -= self._sizes.pop(worker)
        try:
            shutil.rmtree(self._ended / worker)
        except OSError as error:
            get_logger().warning("worker.ended_log_not_removed", worker=worker, error=repr(error))
