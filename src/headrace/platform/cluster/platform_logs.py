"""
The logs of all workers of a platform, running and ended.

Before the folder of a worker is removed, its log is moved to the folder of ended logs, with a note of its log group and
stream. Ended logs are bounded in size and age; the oldest are removed first. Logs that callers write (`open`, `put`)
are kept with them. A log is prepared in the worker's folder
and moved by one rename, so that a kill at any time leaves it complete and in one place. Several processes of a platform
use one folder: each call looks at what the others have moved or removed.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.worker_files import WorkerFiles, read_value, worker_files, write_value
from headrace.platform.cluster.worker_logs import MAX_EVENT_BYTES, WorkerLogEvent, WorkerLogs

MAX_AGE_S: Final = 7 * 86400.0
"""Age at which an ended log is removed."""
MIN_COUNTED_BYTES: Final = 64 << 10
"""Smallest size that a log counts as, which bounds the number of small logs."""
_MOVING: Final = "ended"
"""Folder in a worker's folder in which its log is prepared for the move."""
NOTE: Final = "stream.json"
"""Describes an ended log, in its folder."""
_PREPARED: Final = "prepared_"
"""Begins the name of a folder in which a log is made; no worker's name has an underscore."""
_OPEN_PREFIX: Final = "put."
"""Begins the name of a log that `open` has created; no worker's name has a dot."""


def open_name(log_group: str, log_stream: str) -> str:
    """Return the name of the log with an open log stream."""
    return _OPEN_PREFIX + hashlib.sha256(f"{log_group}\0{log_stream}".encode(errors="surrogatepass")).hexdigest()[:40]


def _encoded(timestamp_ms: int, message: str) -> bytes:
    """Return an event as a line: its time, by which it is found, and its message, which may have several lines."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{moment} {json.dumps(message)}\n".encode()


def encode_events(events: Iterable[tuple[int, str]]) -> bytes:
    """Return events, their times in milliseconds, as lines. Raises `ValueError`: an event is too large."""
    lines = [_encoded(timestamp_ms, message) for timestamp_ms, message in events]
    if any(len(line) > MAX_EVENT_BYTES for line in lines):
        raise ValueError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
    return b"".join(lines)


def _decoded(event: WorkerLogEvent) -> WorkerLogEvent:
    _, _, message = event.message.partition(" ")
    try:
        return replace(event, message=str(json.loads(message)))
    except ValueError:  # a line that was cut off, on a full disk
        return event


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLog:
    """The log of a worker that has been removed."""

    worker: str
    """Name of the worker's record."""
    log_group: str
    log_stream: str
    created_ms: int
    """When the worker was created, milliseconds since 1970, as all times here."""
    ended_ms: int
    """When the log was moved."""
    first_ms: int
    """Time of the first line."""
    last_ms: int
    """Time of the last line."""
    num_bytes: int = 0
    """Size of the log when it was moved; 0: an earlier version moved it."""
    is_open: bool = False
    """A stream that a caller has created, and to which callers write; its times are those of its creation."""


class PlatformLogs:
    """The logs as the `logs` API and the reconciler use them. All methods block on files, and are thread-safe."""

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
        Open the logs of one platform: those below `workers`, and on the same file system those in `ended`.

        Of ended logs approximately `max_bytes` are kept in all, none if it is 0, and each for `max_age_s`.
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
        """The ended logs by worker, in the order in which the workers ended."""
        self._sizes: dict[str, int] = {}
        """The size in bytes that each log counts as."""
        self._total = 0
        """Sum of all sizes."""

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
        """Read at most `limit` events of a running or ended worker; see `WorkerLogs.read`."""
        for logs in (self._live_logs, self._ended_logs):
            events = logs.read(
                worker, start_ms=start_ms, end_ms=end_ms, position=position, limit=limit, is_backward=is_backward
            )
            if events:
                return [_decoded(event) for event in events] if worker.startswith(_OPEN_PREFIX) else events
        return ()

    def fetch(self, worker: str) -> None:
        """Let the folders have all of a log, which they always have on one machine."""

    @property
    def folders(self) -> tuple[Path, Path]:
        """The folders of the logs of running workers, and of all other logs."""
        return self._workers, self._ended

    def open(self, log_group: str, log_stream: str) -> bool:
        """Create a log for callers to write to; return False if it exists. Raises `OSError`."""
        name = open_name(log_group, log_stream)
        files, now_ms = worker_files(self._ended, name), int(self._now_s() * 1000)
        self._ended.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=_PREPARED, dir=self._ended) as prepared:
            made = WorkerFiles(Path(prepared) / name)
            made.folder.mkdir(mode=0o700)
            made.log.touch(mode=0o600)
            times = dict.fromkeys(("created_ms", "ended_ms", "first_ms", "last_ms"), now_ms)
            note = EndedLog(worker=name, log_group=log_group, log_stream=log_stream, is_open=True, **times)
            write_value(made.folder / NOTE, note)
            try:
                made.folder.rename(files.folder)
            except OSError:
                if files.folder.exists():
                    return False
                raise
        return True

    def put(self, worker: str, events: Iterable[tuple[int, str]]) -> None:
        """
        Append events, their times in milliseconds since 1970, to a log that `open` has created, and bound its size.

        Raises `OSError`: it has been removed, or the disk is full; `ValueError`: an event is too large.
        """
        content, files = encode_events(events), worker_files(self._ended, worker)
        with os.fdopen(os.open(files.log, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(content)
        self._ended_logs.trim(worker)

    def size_bytes(self, worker: str) -> int:
        return self._live_logs.size_bytes(worker) or self._ended_logs.size_bytes(worker)

    def ended(self) -> Sequence[EndedLog]:
        """Return all ended logs, in the order in which their workers ended."""
        with self._lock:
            self._read_index()
            self._remove_excess()
            return list(self._index.values())

    def keep(self, worker: str, *, log_group: str, log_stream: str, created_s: float) -> None:
        """
        Move the log of a worker that has ended to the ended logs. Idempotent; does nothing without a log.

        Raises:
            OSError: the log cannot be moved, for example on a full disk.
        """
        files = worker_files(self._workers, worker)
        moving = WorkerFiles(files.folder / _MOVING)
        with self._lock:
            if self._max_bytes == 0 or not (files.log.exists() or moving.log.exists()):
                return
            self._read_index()
            # Prepare the log in the worker's own folder: after a kill the next call finds its parts there.
            moving.folder.mkdir(mode=0o700, exist_ok=True)
            for source, target in ((files.log_base, moving.log_base), (files.log, moving.log)):
                with suppress(FileNotFoundError):
                    source.replace(target)
            logs = WorkerLogs(files.folder, now_s=self._now_s)
            logs.trim(_MOVING, max_bytes=self._max_bytes, kept_bytes=self._max_bytes)
            first, last = logs.read(_MOVING, limit=1), logs.read(_MOVING, limit=1, is_backward=True)
            if not (first and last):  # the log has no line
                return
            ended = EndedLog(
                worker=worker,
                log_group=log_group,
                log_stream=log_stream,
                created_ms=int(created_s * 1000),
                ended_ms=int(self._now_s() * 1000),
                first_ms=first[0].timestamp_ms,
                last_ms=last[-1].timestamp_ms,
                num_bytes=logs.size_bytes(_MOVING),
            )
            write_value(moving.folder / NOTE, ended)
            # One rename moves the whole: from now on the log has ended.
            self._ended.mkdir(mode=0o700, parents=True, exist_ok=True)
            moving.folder.replace(self._ended / worker)
            self._add(ended)
            self._remove_excess()

    def drop(self, workers: Sequence[str]) -> None:
        with self._lock:
            self._read_index()
            for worker in workers:
                self._remove(worker)

    def _read_index(self) -> None:
        """Add the logs that any process has moved here since the last call, and forget those that were removed."""
        present = self._present()
        for gone in self._index.keys() - present:
            self._forget(gone)
        for ended in sorted(self._read_notes(present - self._index.keys()), key=lambda ended: ended.ended_ms):
            self._add(ended)
        self._refresh_open()

    def _present(self) -> AbstractSet[str]:
        """Return the names of the logs that have ended or are open."""
        try:
            with os.scandir(self._ended) as entries:
                return {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(_PREPARED)}
        except FileNotFoundError:
            return set()

    def _refresh_open(self) -> None:
        """Read again what changes of open logs: another process may have written to them."""
        for worker, ended in list(self._index.items()):
            if ended.is_open:
                self._forget(worker)
                self._add(replace(ended, ended_ms=self._ended_logs.written_ms(worker) or ended.ended_ms))

    def _read_notes(self, workers: AbstractSet[str]) -> Iterator[EndedLog]:
        """Read the notes of ended logs. Incomplete entries were being removed, and are removed now."""
        for worker in sorted(workers):
            folder = self._ended / worker
            ended = read_value(folder / NOTE, EndedLog)
            if ended is not None and ended.worker == worker and WorkerFiles(folder).log.exists():
                yield ended
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _add(self, ended: EndedLog) -> None:
        size = max(ended.num_bytes or self._ended_logs.size_bytes(ended.worker), MIN_COUNTED_BYTES)
        self._index[ended.worker] = ended
        self._sizes[ended.worker] = size
        self._total += size

    def _forget(self, worker: str) -> None:
        del self._index[worker]
        self._total -= self._sizes.pop(worker)

    def _remove_excess(self) -> None:
        """Remove logs that are too old, then the oldest ones until the rest fits into `max_bytes`."""
        oldest_ms = (self._now_s() - self._max_age_s) * 1000
        while self._index:
            first = min(self._index.values(), key=lambda ended: ended.ended_ms)
            if first.ended_ms >= oldest_ms and self._total <= self._max_bytes:
                break
            self._remove(first.worker)

    def _remove(self, worker: str) -> None:
        if worker not in self._index:
            return
        self._forget(worker)
        folder = self._ended / worker
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:  # another process of the platform removes it too
            shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            get_logger().warning("worker.ended_log_not_removed", worker=worker, error=repr(error))
