"""
The output of a server in a sandbox, passed on to that of the process outside.

The server gets pipes. With a terminal, its code could read the keys that the operator types, and with a log file change
what is written, or make it a program with its user's rights.
"""

import os
import threading
from codecs import getincrementaldecoder
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Final

from headrace.core.client_text import printable

_READ_BYTES: Final = 64 * 1024
_REST_S: Final = 1.0
"""Seconds for the last output: without namespaces, processes that the code leaves behind keep the pipe open."""


def relay(sources: Iterable[tuple[IO[bytes], int]]) -> list[threading.Thread]:
    """Start threads that pass the bytes of pipes on to descriptors."""
    threads = [threading.Thread(target=_relay, args=pair, name="output", daemon=True) for pair in sources]
    for thread in threads:
        thread.start()
    return threads


def finish(threads: Iterable[threading.Thread]) -> None:
    """Wait for the rest of the output."""
    for thread in threads:
        thread.join(_REST_S)


def _relay(source: IO[bytes], target: int) -> None:
    decoder = getincrementaldecoder("utf-8")("replace") if os.isatty(target) else None
    while data := os.read(source.fileno(), _READ_BYTES):
        rest = data if decoder is None else printable(decoder.decode(data)).encode()
        with suppress(OSError):  # a full disk must not stop the server
            while rest:
                rest = rest[os.write(target, rest) :]
