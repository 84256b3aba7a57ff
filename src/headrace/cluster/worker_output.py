"""The log of a worker's process: its standard streams, made so that a full disk costs lines and never requests."""

import io
import os
import sys
from contextlib import suppress


class LogStream(io.TextIOBase):
    """Text that goes to a descriptor at once; what cannot be written is dropped."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor, for `faulthandler` and children."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Write all of it, or what can be written."""
        rest = text.encode(errors="backslashreplace")
        with suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return len(text)


def protect_output() -> None:
    """Let nothing that this process logs fail."""
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout, sys.stderr = LogStream(1), LogStream(2)
