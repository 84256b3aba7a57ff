"""Limits of fetching artifacts: time, disk space, number of files."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.core.sizes import format_size

RESERVE_BYTES: Final = 256 << 20
"""Disk space that stays free, because the platform's own records are on the same disk."""
MAX_FILES: Final = 100_000
"""Files and folders of one artifact."""
MAX_RATIO: Final = 100
"""Largest ratio of unpacked to packed bytes beyond the first GiB: weights do not compress better."""
_LATE: Final = (
    "The model's files were not downloaded within {timeout_s:g} s. "
    "Raise ModelDataDownloadTimeoutInSeconds or use smaller files."
)
_CHECKED_BYTES: Final = 64 << 20
"""Bytes written between two checks of the free disk space."""


class FetchFailed(Exception):
    """Artifacts cannot be fetched. The message is a FailureReason: what, which value, how to fix it."""


class NothingFound(FetchFailed):
    """The prefix has no objects."""


class DiskFull(FetchFailed):
    """The disk is too full for the artifacts."""


class Deadline:
    """The deadline of fetching all artifacts of a worker; `late` is the error, with `{timeout_s}`."""

    def __init__(self, timeout_s: float, *, late: str = _LATE, now_s: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._late = late
        self._now_s = now_s
        self._end_s = now_s() + timeout_s

    def remaining_s(self) -> float:
        """Return the seconds left, at least 0."""
        return max(self._end_s - self._now_s(), 0.0)

    def check(self) -> None:
        """Raise `FetchFailed` if the deadline has passed."""
        if not self.remaining_s():
            raise FetchFailed(self._late.format(timeout_s=self._timeout_s))


@dataclass(slots=True, kw_only=True)
class Guard:
    """Checks one fetch against its limits, as files are added and bytes are written."""

    folder: Path
    """A folder on the disk that is written to."""
    deadline: Deadline
    max_files: int = MAX_FILES
    reserve_bytes: int = RESERVE_BYTES
    free_bytes: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)
    unrationed_bytes: int = 1 << 30
    """Unpacked bytes that are allowed for an archive of any size."""
    num_files: int = 0
    num_bytes: int = 0
    _unchecked_bytes: int = 0

    def expect(self, num_bytes: int, name: str = "") -> None:
        """Raise `DiskFull` if the disk has no space for `num_bytes` more, those of `name`."""
        free_bytes = self.free_bytes(self.folder)
        if num_bytes > free_bytes - self.reserve_bytes:
            raise DiskFull(
                f"{f'{name} cannot be stored: ' if name else ''}"
                f"The disk of {self.folder} is full: {format_size(max(num_bytes, 1))} more are needed, "
                f"{format_size(max(free_bytes, 0))} are free, of which {format_size(self.reserve_bytes)} are reserved. "
                "Free some space, or put the data folder on a larger disk."
            )

    def add_file(self, count: int = 1) -> None:
        """Count a file or folder; raises `FetchFailed` above `max_files`."""
        self.num_files += count
        self.deadline.check()
        if self.num_files > self.max_files:
            raise FetchFailed(
                f"The model has more than {self.max_files} files and folders. Leave out the files that are not needed."
            )

    def add_bytes(self, num_bytes: int) -> None:
        """Count written bytes; raises `DiskFull` or `FetchFailed` at a limit."""
        self.num_bytes += num_bytes
        self._unchecked_bytes += num_bytes
        self.deadline.check()
        if self._unchecked_bytes >= _CHECKED_BYTES:
            self._unchecked_bytes = 0
            self.expect(0)

    def check_ratio(self, packed_bytes: int, name: str, *, num_bytes: int | None = None) -> None:
        """Raise `FetchFailed` if an archive unpacks to more than `MAX_RATIO` times its size; by default the files."""
        if (self.num_bytes if num_bytes is None else num_bytes) > self.unrationed_bytes + MAX_RATIO * packed_bytes:
            raise FetchFailed(
                f"{name} unpacks to more than {MAX_RATIO} times its size; models do not compress that well. "
                "Pack the model's files only."
            )


@contextmanager
def translate_os_errors(name: str) -> Iterator[None]:
    """Translate errors of the operating system while `name` is written to `FetchFailed`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(f"The disk is full: {name} cannot be stored. Free some space.") from error
        raise FetchFailed(f"{name} cannot be stored: {error.strerror or error}.") from error


def copy_stream(read: Callable[[int], bytes], target: Path, guard: Guard, *, mode: int = 0o644) -> None:
    """Copy everything that `read` returns into a new file."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123 -- the descriptor ensures a new file that is not a link
        while piece := read(1 << 20):
            guard.add_bytes(len(piece))
            file.write(piece)


def sized_reader(next_piece: Callable[[], bytes]) -> Callable[[int], bytes]:
    """Turn an iterator of pieces into a `read(size)`."""
    held = b""

    def read(size: int) -> bytes:
        nonlocal held
        while not held:
            try:
                held = next_piece()
            except StopIteration:
                return b""
        piece, held = held[:size], held[size:]
        return piece

    return read
