"""
The progress of a job on disk: its inputs as they were listed once, and the answers that are in no output object yet.

Answers are appended in the order in which they come; a line of the index with number, offset and length follows each.
After a kill -9 a file goes on after the answers that its index has: none is asked for again, and none is lost. An
output object is written at once, when all of its answers are there. The methods block: call them in a thread.
"""

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from headrace.platform.jobs.inputs import InputFile

_INPUTS: Final = "inputs.json"
_ENDED: Final = ".ended"
_BUFFER_BYTES: Final = 1 << 20


class JobFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_inputs(self) -> list[InputFile] | None:
        """Return the inputs as they were listed; None if they have not been."""
        try:
            return msgspec.json.decode((self._folder / _INPUTS).read_bytes(), type=list[InputFile])
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def write_inputs(self, inputs: Sequence[InputFile]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self._folder / f"{_INPUTS}.partial"
        partial.write_bytes(msgspec.json.encode(inputs))
        partial.replace(self._folder / _INPUTS)

    def ended(self) -> dict[int, str]:
        """Return the files that have ended by their numbers, each with the reason of its failure, or an empty text."""
        return {int(path.stem): path.read_text("utf-8") for path in self._folder.glob(f"*{_ENDED}")}

    def spool(self, number: int) -> "Spool":
        return Spool(self._folder, number)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class Spool:
    """The answers to the requests for one input object."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._data, self._index = folder / f"{number}.data", folder / f"{number}.index"
        self._lock = threading.Lock()
        self._places: dict[int, tuple[int, int]] = {}
        self._read_index()

    def __contains__(self, request: int) -> bool:
        return request in self._places

    def add(self, request: int, answer: bytes) -> None:
        """Append the answer to a request. Raises `OSError`, for example on a full disk."""
        with self._lock:
            with self._data.open("ab") as data:
                offset = data.tell()
                data.write(answer)
            with self._index.open("a", encoding="ascii") as index:
                index.write(f"{request} {offset} {len(answer)}\n")
            self._places[request] = offset, len(answer)

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
        (self._folder / f"{self._number}{_ENDED}").write_text(failure, "utf-8")
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
