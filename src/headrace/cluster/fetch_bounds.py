"""What fetching artifacts may take: time, room on the disk, files."""

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
"""Left free on the disk: the platform's own records are on it, too."""
MAX_FILES: Final = 100_000
"""Files and folders of one artifact."""
MAX_RATIO: Final = 100
"""Unpacked to packed bytes, beyond the first GiB: weights do not shrink like that."""
_CHECKED_BYTES: Final = 64 << 20
"""So much is written between two looks at the disk."""


class FetchFailed(Exception):
    """Artifacts cannot be had; the message is a FailureReason: what, which value, how to fix it."""


class NothingFound(FetchFailed):
    """A prefix without objects."""


class DiskFull(FetchFailed):
    """There is no room."""


class Deadline:
    """When fetching must have ended."""

    def __init__(self, timeout_s: float, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._end_s = now_s() + timeout_s

    def remaining_s(self) -> float:
        """Seconds that are left, never below 0."""
        return max(self._end_s - self._now_s(), 0.0)

    def check(self) -> None:
        """Raise `FetchFailed` once it has passed."""
        if not self.remaining_s():
            raise FetchFailed(
                f"The model's files were not there after {self._timeout_s:g} s. "
                "Raise ModelDataDownloadTimeoutInSeconds or take smaller files."
            )


@dataclass(slots=True, kw_only=True)
class Guard:
    """Watches one fetch; told of all that it writes."""

    folder: Path
    """On the disk that is written to."""
    deadline: Deadline
    max_files: int = MAX_FILES
    reserve_bytes: int = RESERVE_BYTES
    free_bytes: Callable[[Path], int] = field(default=lambda folder: shutil.disk_usage(folder).free)
    unrationed_bytes: int = 1 << 30
    """So much may come out of an archive of any size."""
    num_files: int = 0
    num_bytes: int = 0
    _unchecked_bytes: int = 0

    def expect(self, num_bytes: int) -> None:
        """Raise `DiskFull` if so much more does not fit."""
        free_bytes = self.free_bytes(self.folder)
        if num_bytes > free_bytes - self.reserve_bytes:
            raise DiskFull(
                f"The disk of {self.folder} is full: {format_size(max(num_bytes, 1))} more are needed, "
                f"{format_size(max(free_bytes, 0))} are free, {format_size(self.reserve_bytes)} of them for others. "
                "Free some space, or put the data folder on a larger disk."
            )

    def add_file(self, count: int = 1) -> None:
        """Count a file or folder."""
        self.num_files += count
        self.deadline.check()
        if self.num_files > self.max_files:
            raise FetchFailed(
                f"The model has more than {self.max_files} files and folders. Leave out what is not needed."
            )

    def add_bytes(self, num_bytes: int) -> None:
        """Count what was written, or is about to be."""
        self.num_bytes += num_bytes
        self._unchecked_bytes += num_bytes
        self.deadline.check()
        if self._unchecked_bytes >= _CHECKED_BYTES:
            self._unchecked_bytes = 0
            self.expect(0)

    def check_ratio(self, packed_bytes: int, name: str) -> None:
        """Raise `FetchFailed` if more came out of an archive than an honest one has in it."""
        if self.num_bytes > self.unrationed_bytes + MAX_RATIO * packed_bytes:
            raise FetchFailed(
                f"{name} unpacks to more than {MAX_RATIO} times its size, which no model does. "
                "Pack the model's files only."
            )


@contextmanager
def translate_os_errors(what: str) -> Iterator[None]:
    """Errors of the operating system while `what` is written, as sentences."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(f"The disk is full: {what} cannot be stored. Free some space.") from error
        raise FetchFailed(f"{what} cannot be stored: {error.strerror or error}.") from error


def copy_stream(read: Callable[[int], bytes], target: Path, guard: Guard, *, mode: int = 0o644) -> None:
    """Write all that `read` gives into a new file."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123 -- opened so that it is new and no link
        while piece := read(1 << 20):
            guard.add_bytes(len(piece))
            file.write(piece)
