"""
The results of one batch on disk, each exactly once, whenever the process is killed.

A result is appended to the output or to the errors before it counts. When the batch goes on after a kill, the valid
lines from the beginning of each file are its results; what follows them, such as half a line, is cut off, and those
requests run again. The folder is written on one thread, which syncs the results of many requests together.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final, Self

import msgspec

from headrace.core.errors import Unavailable
from headrace.serving.batches.store import ERRORS, OUTPUT, Progress
from headrace.serving.wire.batches import Counts, Result, TokenUsage, add_usage, read_result

_MAX_READ_BYTES: Final = 1 << 30
"""Longest line of a result that is read; a model's answer is far shorter."""
_LINES_AT_ONCE: Final = 1000
_GONE: Final = {"batch_expired": "expired", "batch_cancelled": "cancelled"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A result that is to be stored."""

    line: bytes
    """With its line end."""
    result: Result


class Journal:
    """The results of a batch that runs; `open` reads those of earlier processes."""

    def __init__(self, output: FileIO, errors: FileIO, progress: Progress | None) -> None:
        self._files = {OUTPUT: output, ERRORS: errors}
        self._progress = progress
        self._waiting: list[Entry] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batch-journal")
        self.done: set[str] = set()
        """The `custom_id`s of the results on disk."""
        self.counts = Counts()
        self.usage = TokenUsage()

    @classmethod
    def open(cls, folder: Path, progress: Progress | None = None) -> Self:
        """
        Open the results in a folder, without a half-written end; blocks. Raises `OSError`.

        With the `progress` that machines share, the folder gets the results that are in there.
        """
        journal = cls(_opened(folder / OUTPUT), _opened(folder / ERRORS), progress)
        try:
            journal._read() if progress is None else journal._restore(progress)
        except BaseException:
            journal._close_files()
            raise
        return journal

    def _read(self) -> None:
        for file in self._files.values():
            end = 0
            for line, result in _valid_lines(file):
                end += len(line)
                self._count(result)
            file.truncate(end)
            file.seek(end)

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()

    async def add(self, line: bytes) -> None:
        """Store a result; it is on the disk when this returns. Raises `OSError`."""
        self._waiting.append(Entry(line, read_result(line)))
        await self.run(self._flush)

    async def add_all(self, lines: Iterator[bytes]) -> None:
        """Store results that `lines` yields on the thread of the journal, after what was added. Raises `OSError`."""

        def append() -> None:
            self._flush()  # also of requests that were cancelled while their results waited for the thread
            while some := list(islice(lines, _LINES_AT_ONCE)):
                self._append([Entry(line, read_result(line)) for line in some])

        await self.run(append)

    async def close(self) -> None:
        """Store what was added, and close the files; a result that cannot be written runs again."""

        def end() -> None:
            try:
                with suppress(OSError, Unavailable):
                    self._flush()
            finally:
                self._close_files()

        ending = self._thread.submit(end)
        self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(ending))

    async def run(self, work: Callable[[], None]) -> None:
        """Run work on the thread of the journal, in the order of the calls."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _restore(self, progress: Progress) -> None:
        for file in self._files.values():
            file.truncate(0)
        lines = progress.lines()
        while some := list(islice(lines, _LINES_AT_ONCE)):
            entries = {}
            for line in some:  # a machine that was no longer the leader may have stored the result of another one
                result = read_result(line)
                if result.custom_id not in self.done:
                    entries[result.custom_id] = Entry(line, result)
            self._write(list(entries.values()))

    def _flush(self) -> None:
        taken, self._waiting = self._waiting, []
        if taken:
            self._append(taken)

    def _append(self, entries: list[Entry]) -> None:
        if self._progress is not None:
            self._progress.append(b"".join(entry.line for entry in entries))
        self._write(entries)

    def _write(self, entries: list[Entry]) -> None:
        for name, file in self._files.items():
            lines = [entry.line for entry in entries if _place(entry.result) == name]
            if not lines:
                continue
            end = file.tell()
            try:
                _write_whole(file, b"".join(lines))
                os.fsync(file.fileno())
            except OSError:  # such as a full disk: nothing of it counts
                with suppress(OSError):
                    file.truncate(end)
                    file.seek(end)
                raise
        for entry in entries:
            self._count(entry.result)

    def _count(self, result: Result) -> None:
        self.done.add(result.custom_id)
        if result.response is not None:
            add_usage(self.usage, bytes(result.response.body))
        code = "" if result.error is None else result.error.code
        outcome = "completed" if _place(result) == OUTPUT else _GONE.get(code, "failed")
        setattr(self.counts, outcome, getattr(self.counts, outcome) + 1)


def _place(result: Result) -> str:
    """Return the file of a result: errors are those without an answer, or with another status than 200."""
    return OUTPUT if result.response is not None and result.response.status_code == 200 else ERRORS


def _opened(path: Path) -> FileIO:
    path.touch(mode=0o600)
    return path.open("r+b", buffering=0)


def _write_whole(file: FileIO, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _valid_lines(file: FileIO) -> Iterator[tuple[bytes, Result]]:
    """Yield the lines and results of a file until one is incomplete or damaged."""
    buffered = os.fdopen(os.dup(file.fileno()), "rb")
    with buffered:
        for line in iter(partial(buffered.readline, _MAX_READ_BYTES), b""):
            if not line.endswith(b"\n"):
                return
            try:
                yield line, read_result(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return
