"""The child's end of the socket to the model server."""

import fcntl
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from headrace_handler.frames import (
    INLINE_BYTES,
    Buffer,
    Frame,
    FrameParser,
    Kind,
    PeerGone,
    after,
    encode,
    receive,
    send_some,
    write_memory_file,
)

EXIT_NO_SERVER = 70
"""The child cannot reach the model server: it has ended, or user code has closed the socket."""
_HIGH_DESCRIPTOR = 200
"""User code that closes or reuses low descriptors does not meet the socket there."""


class Connection:
    """The socket, used by all threads of the child."""

    def __init__(self, descriptor: int) -> None:
        """Take over an inherited descriptor; it is moved out of the way and closed in programs that are executed."""
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
        os.close(descriptor)
        self._socket = socket.socket(fileno=moved)
        self._owner = os.getpid()
        self._sending = threading.Lock()

    def send(self, frames: Sequence[tuple[Kind, dict[str, Any], Buffer]]) -> None:
        """Send frames at once; the process ends if it cannot reach the model server, or is a fork of the child."""
        if os.getpid() != self._owner:
            os._exit(EXIT_NO_SERVER)  # a fork that has left user code would answer a second time
        try:
            with self._sending:
                self._send(frames)
        except (OSError, PeerGone):
            os._exit(EXIT_NO_SERVER)

    def frames(self) -> Iterator[Frame]:
        """
        Yield frames as they arrive, until the model server closes the socket.

        Raises:
            OSError: user code has closed the socket.
            BadFrame: other bytes have arrived.
        """
        parser = FrameParser()
        while True:
            try:
                data, descriptors = receive(self._socket)
            except PeerGone:
                return
            yield from parser.feed(data, descriptors)

    def _send(self, frames: Sequence[tuple[Kind, dict[str, Any], Buffer]]) -> None:
        buffers: list[Buffer] = []
        with ExitStack() as files:
            descriptors = []
            for kind, header, payload in frames:
                if len(payload) > INLINE_BYTES:
                    descriptors.append(write_memory_file(payload))
                    files.callback(os.close, descriptors[-1])
                    header, payload = {**header, "memfds": 1, "length": len(payload)}, b""  # noqa: PLW2901
                buffers += encode(kind, header, (payload,) if payload else ())
            while buffers:
                num_sent = send_some(self._socket, buffers, descriptors)
                buffers, descriptors = after(buffers, num_sent), []
