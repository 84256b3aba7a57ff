"""
The logs of all machines of a platform, as each machine finds them.

A worker's log is on its machine while it runs: other machines ask for what they do not have yet, regularly and before
they read it. When it has ended, its machine keeps it with the files that all machines share, as are the logs that
callers write. A folder has copies, which `PlatformLogs` reads. Of a worker whose machine is lost, the copy is kept.
"""

import fcntl
import os
import shutil
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.core.errors import Unavailable
from headrace.core.files import Files
from headrace.core.log_files import MAX_LOG_BYTES
from headrace.core.telemetry import get_logger
from headrace.platform.cluster.platform_logs import MAX_AGE_S, NOTE, EndedLog, PlatformLogs, encode_events, open_name
from headrace.platform.cluster.worker_files import (
    CONTAINERS,
    WorkerFiles,
    container_log,
    read_value,
    worker_files,
    write_atomically,
    write_value,
)
from headrace.platform.cluster.worker_logs import WorkerLogEvent, WorkerLogs

LOG_BYTES: Final = "bytes of a log"
"""The question for the bytes of a running worker's log: its name, and a position."""
KEEP_LOG: Final = "keep a log"
"""The question to keep the log of a worker that has ended: the arguments of `PlatformLogs.keep`."""
NEW_BYTES: Final = "new bytes of logs"
"""The question for what a machine's running workers have written: the log's name → the position from which on."""
FOLLOW_S: Final = 5.0
"""Seconds between two such questions."""
_UNUSED_S: Final = 86_400.0
_PULLED_BYTES: Final = 1 << 20
"""Bytes of an answer."""
_PIECE_BYTES: Final = 1 << 16
"""Bytes of one log in an answer about many: one that grows fast must not delay the others."""
_MAX_PULLS: Final = 2 * MAX_LOG_BYTES // _PULLED_BYTES

Ask = Callable[[str, Sequence[object]], Sequence[Any]]
"""Asks all other machines a question; blocks."""


class SharedLogs(PlatformLogs):
    """The logs of a platform on several machines. All methods block on files, the database and other machines."""

    def __init__(
        self,
        workers: Path,
        files: Files,
        *,
        ask: Ask,
        max_bytes: int,
        are_copies: bool = False,
        max_age_s: float = MAX_AGE_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """
        Open the logs of this machine, and those of others through `ask`; else as `PlatformLogs`.

        `are_copies`: logs below `workers` are copies, too, as those of Ray workers: behind once another machine leads.
        """
        super().__init__(workers, files.root, max_bytes=max_bytes, max_age_s=max_age_s, now_s=now_s)
        self._are_copies = are_copies
        self._files = files
        self._ask = ask
        self._copying_lock = threading.Lock()
        self._followed: dict[str, int] = {}
        """Log of a running worker of another machine → the end of its copy."""
        self._num_copied: dict[str, int] = {}
        """Log of callers → its entries that the copy has."""

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
        self.fetch(worker)
        return super().read(
            worker, start_ms=start_ms, end_ms=end_ms, position=position, limit=limit, is_backward=is_backward
        )

    def size_bytes(self, worker: str) -> int:
        ended = self._index.get(worker)
        if ended is not None:
            return ended.num_bytes
        self.fetch(worker)
        return super().size_bytes(worker)

    def fetch(self, worker: str) -> None:
        """Copy a log to this machine as far as it is not here. Raises `OSError`."""
        try:
            files = worker_files(self._ended, worker)
        except ValueError:
            return
        is_here = worker_files(self._workers, worker).log.exists()
        if is_here and not self._are_copies:
            return
        with _as_os_error():
            note = self._read_note(worker)
            if note is None:
                self._pull(worker, self._live_logs if is_here else self._ended_logs)
                return
            with self._copying():
                if note.is_open:
                    self._copy_entries(note, files)
                elif read_value(files.folder / NOTE, EndedLog) is None:
                    self._copy_ended(files, note)

    def follow(self) -> None:
        """Copy what the running workers of other machines have written since the last call; once on each machine."""
        self._workers.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self._workers, waits=False) as is_first:
            for _ in range(_MAX_PULLS if is_first else 0):
                pieces = [piece for answer in self._ask(NEW_BYTES, (self._followed,)) for piece in answer]
                for log, position, encoded in pieces:
                    content = b64decode(encoded)
                    self._append(self._ended_logs, log, position, content)
                    self._followed[log] = position + len(content)
                if not pieces:
                    break
            self._followed = {log: end for log, end in self._followed.items() if (self._ended / log).exists()}

    def open(self, log_group: str, log_stream: str) -> bool:
        name = open_name(log_group, log_stream)
        times = dict.fromkeys(("created_ms", "ended_ms", "first_ms", "last_ms"), int(self._now_s() * 1000))
        note = EndedLog(worker=name, log_group=log_group, log_stream=log_stream, is_open=True, **times)
        with _as_os_error():
            if self._read_note(name) is not None:
                return False
            self._write_note(note)
        return True

    def put(self, worker: str, events: Iterable[tuple[int, str]]) -> None:
        content = encode_events(events)
        with _as_os_error():
            note = self._read_note(worker)
            if note is None:
                raise FileNotFoundError(2, "The log was removed")
            log = worker_files(self._ended, worker).log
            if note.num_bytes > MAX_LOG_BYTES:
                self._files.end_log(log)
                note = replace(note, num_bytes=0)
            self._files.append(log, content)
            ended_ms = int(self._now_s() * 1000)
            self._write_note(replace(note, num_bytes=note.num_bytes + len(content), ended_ms=ended_ms))

    def keep(self, worker: str, *, log_group: str, log_stream: str, created_s: float) -> None:
        """Keep the log of a worker that has ended, on whichever machine. Raises `OSError`, as if it were here."""
        if not self.keep_own(worker, log_group=log_group, log_stream=log_stream, created_s=created_s):
            self._ask(KEEP_LOG, (worker, log_group, log_stream, created_s))
            with _as_os_error():
                is_kept = self._read_note(worker) is not None
            if not is_kept and self._adopt(worker):
                self.keep_own(worker, log_group=log_group, log_stream=log_stream, created_s=created_s)

    def _adopt(self, worker: str) -> bool:
        """Make the copy of a log that of a worker of this machine, as its own was lost; return False without a copy."""
        copy, files = worker_files(self._ended, worker), worker_files(self._workers, worker)
        with self._copying():
            if not copy.log.exists():
                return False
            files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                copy.log_base.replace(files.log_base)
            copy.log.replace(files.log)
            shutil.rmtree(copy.folder)
        return True

    def keep_own(self, worker: str, *, log_group: str, log_stream: str, created_s: float) -> bool:
        """Keep the log of a worker of this machine; return False if it is of another one."""
        is_here = worker_files(self._workers, worker).folder.is_dir()
        files = worker_files(self._ended, worker)
        with _as_os_error():
            with self._copying():
                if is_here and not (files.folder / NOTE).exists():
                    shutil.rmtree(files.folder, ignore_errors=True)  # a copy, from before this machine had the log
            super().keep(worker, log_group=log_group, log_stream=log_stream, created_s=created_s)
            note = read_value(files.folder / NOTE, EndedLog)
            if note is None:
                return is_here
            if self._read_note(worker) is None:  # else it was kept before
                self._files.keep(files.log)
                if files.log_base.exists():
                    self._files.write(files.log_base, files.log_base.read_bytes())
                self._write_note(note)
        return True

    def sweep(self) -> None:
        """Remove copies of other than ended logs that have not been written for a day."""
        ended = {log.worker for log in self.ended()}
        with self._copying():
            for folder in self._ended.iterdir() if self._ended.exists() else ():
                written_ms = self._ended_logs.written_ms(folder.name) or 0
                if folder.name not in ended and written_ms < (self._now_s() - _UNUSED_S) * 1000:
                    shutil.rmtree(folder, ignore_errors=True)

    def answer_bytes(self, worker: str, position: int) -> tuple[int, bytes]:
        """Answer `LOG_BYTES` with the position of the bytes, and the bytes."""
        return self._live_logs.read_bytes(worker, position, _PULLED_BYTES)

    def answer_new_bytes(self, positions: Mapping[str, int]) -> Sequence[tuple[str, int, bytes]]:
        """Answer `NEW_BYTES` with pieces of logs: the name, the position of the bytes, and the bytes."""
        found: list[tuple[str, int, bytes]] = []
        left = _PULLED_BYTES
        for log in self._running():
            position, content = self._live_logs.read_bytes(log, positions.get(log, 0), min(left, _PIECE_BYTES))
            if content:
                found.append((log, position, content))
                left -= len(content)
        return found

    def _running(self) -> Iterator[str]:
        """Yield the logs of the workers of this machine, and of their containers."""
        for folder in sorted(self._workers.iterdir()) if self._workers.is_dir() else ():
            yield folder.name
            containers = folder / CONTAINERS
            for container in sorted(containers.iterdir()) if containers.is_dir() else ():
                yield container_log(folder.name, container.name)

    def _pull(self, worker: str, logs: WorkerLogs) -> None:
        """Copy what the machine of a running worker has written since the last call."""
        for _ in range(_MAX_PULLS):
            answers = self._ask(LOG_BYTES, (worker, logs.end_position(worker)))
            found = [(position, content) for position, content in answers if content]
            for position, content in found:
                self._append(logs, worker, position, b64decode(content))
            if not found:
                return

    def _append(self, logs: WorkerLogs, log: str, position: int, content: bytes) -> None:
        """Add to the copy of a running worker's log."""
        with self._copying():
            if not (worker_files(self._ended, log).folder / NOTE).exists():  # it was kept meanwhile
                logs.append(log, position, content)
                logs.trim(log)

    @contextmanager
    def _copying(self) -> Iterator[None]:
        """Hold off the other threads and processes of this machine that copy logs."""
        self._ended.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._copying_lock, _locked(self._ended, waits=True):
            yield

    def _copy_entries(self, note: EndedLog, files: WorkerFiles) -> None:
        """Copy what callers have written since the last call; all of it if the log has begun again."""
        worker = note.worker
        if worker not in self._num_copied or self._ended_logs.end_position(worker) > note.num_bytes:
            shutil.rmtree(files.folder, ignore_errors=True)
            self._num_copied[worker] = 0
        for entry in self._files.entries(files.log, first=self._num_copied[worker]):
            self._ended_logs.append(worker, self._ended_logs.end_position(worker), entry)
            self._num_copied[worker] += 1
        self._ended_logs.trim(worker)

    def _copy_ended(self, files: WorkerFiles, note: EndedLog) -> None:
        shutil.rmtree(files.folder, ignore_errors=True)  # what was copied while it ran, which is not all
        self._files.fetch(files.log)
        os.utime(files.log, ns=(note.ended_ms * 1_000_000, note.last_ms * 1_000_000))  # the time of lines without one
        base = self._files.read(files.log_base)
        if base is not None:
            write_atomically(files.log_base, base)
        write_value(files.folder / NOTE, note)

    def _read_note(self, worker: str) -> EndedLog | None:
        content = self._files.read(self._ended / worker / NOTE)
        return None if content is None else _decoded(content)

    def _write_note(self, note: EndedLog) -> None:
        self._files.write(self._ended / note.worker / NOTE, msgspec.json.encode(note))

    def _present(self) -> AbstractSet[str]:
        return set(self._files.names(self._ended))

    def _read_notes(self, workers: AbstractSet[str]) -> Iterator[EndedLog]:
        contents = self._files.read_many([self._ended / worker / NOTE for worker in workers])
        for content in contents.values():
            if (note := _decoded(content)) is not None:
                yield note

    def _refresh_open(self) -> None:
        is_open = {worker for worker, ended in self._index.items() if ended.is_open}
        for note in self._read_notes(is_open):
            self._forget(note.worker)
            self._add(note)

    def _remove(self, worker: str) -> None:
        note = self._index.get(worker)
        if note is None:
            return
        files = worker_files(self._ended, worker)
        try:
            self._files.remove(files.folder / NOTE)  # first: what is left is not found any more
            self._files.end_log(files.log) if note.is_open else self._files.discard(files.log)
            self._files.remove_tree(files.folder)
        except Unavailable as error:
            get_logger().warning("worker.ended_log_not_removed", worker=worker, error=error.message)
        self._forget(worker)
        self._num_copied.pop(worker, None)


@contextmanager
def _locked(folder: Path, *, waits: bool) -> Iterator[bool]:
    """Lock a folder for this process; yield False if another one has it and this one does not wait."""
    descriptor, is_locked = os.open(folder, os.O_RDONLY), False
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        yield is_locked
    finally:
        os.close(descriptor)


def _decoded(content: bytes) -> EndedLog | None:
    try:
        return msgspec.json.decode(content, type=EndedLog)
    except msgspec.MsgspecError:  # of a newer version
        return None


class _as_os_error:  # noqa: N801 -- a context manager
    """Raise `OSError` for a database, a bucket or a machine that cannot be reached, as for a disk."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        if isinstance(error, Unavailable):
            raise OSError(5, error.message) from error
