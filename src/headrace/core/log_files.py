"""Bounds on log files that other processes append to."""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

MAX_LOG_BYTES: Final = 64 << 20
"""Size above which a log is cut."""
KEPT_LOG_BYTES: Final = 16 << 20
"""Size that a log is cut to."""
_MAX_LINE_BYTES: Final = 256 << 10
"""The cut is at the end of a line, unless the line is longer."""
_BLOCK_BYTES: Final = 256 << 10


def trim_log(
    path: Path,
    *,
    max_bytes: int = MAX_LOG_BYTES,
    kept_bytes: int = KEPT_LOG_BYTES,
    note_cut: Callable[[int], None] | None = None,
) -> bool:
    """
    Cut off the beginning of a log that is larger than `max_bytes`; return whether it was.

    The writer, which must append (`O_APPEND`), continues at the new end: what it adds in the microseconds between the
    last read and the truncation is lost. A log that another process is cutting is left to it.

    Args:
        path: the log; it need not exist.
        max_bytes: size above which it is cut.
        kept_bytes: about the size that it is cut to.
        note_cut: called with the number of bytes that are cut off, just before they are.

    Raises:
        OSError: the log cannot be read or written.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
    except OSError:
        return False
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if file.seek(0, 2) <= max_bytes:
            return False  # another process has cut it in the meantime
        file.seek(-kept_bytes, 2)
        file.readline(_MAX_LINE_BYTES)
        source = start = file.tell()
        target = 0
        while block := _read_at(file, source):
            file.seek(target)
            file.write(block)
            source, target = source + len(block), target + len(block)
        file.flush()
        if note_cut is not None:
            note_cut(start)
        file.truncate(target)
    return True


def _read_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(_BLOCK_BYTES)
