"""The standard streams of a worker process: on a full disk lines are lost, but requests do not fail."""

import io
import os
import sys
from contextlib import suppress


class LogStream(io.TextIOBase):
    """An unbuffered text stream to a descriptor; text that cannot be written is dropped."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        """Return True: this is the write side."""
        return True

    def fileno(self) -> int:
        """Return the descriptor, for `faulthandler` and child processes."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Write as much of the text as possible."""
        rest = text.encode(errors="backslashreplace")
        with suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return len(text)


def protect_output() -> None:
    """Replace stdout and stderr so that logging never fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout, sys.stderr = LogStream(1), LogStream(2)
