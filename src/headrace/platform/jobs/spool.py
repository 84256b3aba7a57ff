"""
The progress of a job on disk: its inputs as they were listed once, and the answers that are in no output object yet.

Answers are appended in the order in which they come; a line of the index with number, offset and length follows each.
After a kill -9 a file goes on after the answers that its index has: none is asked for again, and none is lost. Where
machines share the files, another one goes on with the answers that are in the log, which is at most a second behind.
An output object is written at once, when all of its answers are there. The methods block: call them in a thread.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from headrace.core.errors import Unavailable
from headrace.core.files import Files
from headrace.core.telemetry import get_logger
from headrace.platform.jobs.inputs import InputFile

_INPUTS: Final = "inputs.json"
_ENDED: Final = ".ended"
_BUFFER_BYTES: Final = 1 << 20
_LOG_S: Final = 1.0
"""Seconds between entries of the log, unless the answers fill the buffer before."""

_Answers = list[tuple[int, bytes]]
"""Requests with their answers."""


class JobFolder:
    """The folder of a job, on this machine or shared by all."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder

    def read_inputs(self) -> list[InputFile] | None:
        """Return the inputs as they were listed; None if they have not been."""
        content = self._files.read(self._folder / _INPUTS)
        try:
            return None if content is None else msgspec.json.decode(content, type=list[InputFile])
        except msgspec.DecodeError:
            return None

    def write_inputs(self, inputs: Sequence[InputFile]) -> None:
        self._files.write(self._folder / _INPUTS, msgspec.json.encode(inputs))

    def ended(self) -> dict[int, str]:
        """Return the files that have ended by their numbers, each with the reason of its failure, or an empty text."""
        paths = [self._folder / name for name in self._files.names(self._folder) if name.endswith(_ENDED)]
        return {int(path.stem): content.decode() for path, content in self._files.read_many(paths).items()}

    def spool(self, number: int) -> "Spool":
        return Spool(self._files, self._folder, number)

    def remove(self) -> None:
        self._files.remove_tree(self._folder)


class Spool:
    """The answers to the requests for one input object."""

    def __init__(self, files: Files, folder: Path, number: int) -> None:
        self._files, self._folder, self._number = files, files.folder(folder), number
        self._data, self._index = folder / f"{number}.data", folder / f"{number}.index"
        self._log = folder / f"{number}.log"
        self._lock = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}
        self._not_logged: _Answers = []
        self._logged_s = time.monotonic()
        if files.is_shared:
            self._replay()
        else:
            self._read_index()

    def __contains__(self, request: int) -> bool:
        return request in self._places

    def add(self, request: int, answer: bytes) -> None:
        """Append the answer to a request. Raises `OSError`, for example on a full disk."""
        with self._lock:
            self._append(request, answer)
            if self._files.is_shared:
                self._not_logged.append((request, answer))
                self._log_answers()

    def _append(self, request: int, answer: bytes) -> None:
        with self._data.open("ab") as data:
            offset = data.tell()
            data.write(answer)
        with self._index.open("a", encoding="ascii") as index:
            index.write(f"{request} {offset} {len(answer)}\n")
        self._places[request] = offset, len(answer)

    def _log_answers(self) -> None:
        """Log the answers of the last second; while the database fails, the next call logs them."""
        num_bytes = sum(len(answer) for _, answer in self._not_logged)
        if num_bytes < _BUFFER_BYTES and time.monotonic() - self._logged_s < _LOG_S:
            return
        try:
            self._files.append(self._log, msgspec.msgpack.encode(self._not_logged))
        except Unavailable as error:
            get_logger().warning("transform.progress_not_logged", message=error.message)
            return
        self._not_logged, self._logged_s = [], time.monotonic()

    def _replay(self) -> None:
        """Read the answers that any machine has logged; those that this one has besides may not be all of the log."""
        for path in (self._data, self._index):
            path.unlink(missing_ok=True)
        for entry in self._files.entries(self._log):
            for request, answer in msgspec.msgpack.decode(entry, type=_Answers):
                if request not in self:
                    self._append(request, answer)

    @contextmanager
    def assembled(self, *, by_line: bool) -> Iterator[BinaryIO]:
        """Open the answers in the order of the requests; `by_line`: each of them ends with a newline."""
        path = self._folder / f"{self._number}.out"
        with path.open("w+b") as output:
            if self._places:
                with self._data.open("rb") as data:
                    for _, (offset, length) in sorted(self._places.items()):
                        _copy(data, output, offset, length, by_line=by_line)
            output.flush()
            yield output
        path.unlink()

    def end(self, failure: str) -> None:
        """Record that the file has ended, which is durable before the answers are removed."""
        self._files.write(self._folder / f"{self._number}{_ENDED}", failure.encode())
        self._files.end_log(self._log)
        for path in (self._data, self._index):
            path.unlink(missing_ok=True)

    def _read_index(self) -> None:
        """Read the answers that an earlier process has written, and cut off what it has not finished."""
        if not self._index.exists():
            self._data.unlink(missing_ok=True)
            return
        size, kept, used = self._data.stat().st_size if self._data.exists() else 0, 0, 0
        for line in self._index.read_text("ascii").splitlines(keepends=True):
            numbers = line.split()
            if not line.endswith("\n") or len(numbers) != 3 or int(numbers[1]) + int(numbers[2]) > size:
                break
            request, offset, length = map(int, numbers)
            self._places[request] = offset, length
            used, kept = max(used, offset + length), kept + len(line)
        with self._index.open("r+b") as index:
            index.truncate(kept)
        if self._data.exists():
            with self._data.open("r+b") as data:
                data.truncate(used)


def _copy(source: BinaryIO, target: BinaryIO, offset: int, length: int, *, by_line: bool) -> None:
    source.seek(offset)
    part = b""
    while length:
        part = source.read(min(length, _BUFFER_BYTES))
        target.write(part)
        length -= len(part)
    if by_line and not part.endswith(b"\n"):
        target.write(b"\n")
