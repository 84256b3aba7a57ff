"""
The child's end of the socket to the model server.

There is no reader thread: a hand-over between threads would cost each call a wake-up. Instead the thread that needs a
frame receives, and passes every frame that arrives to the child; other threads that need a frame wait meanwhile. While
no thread needs one, frames stay in the socket. A background thread only watches for the end of the model server.
"""

import fcntl
import os
import select
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
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
"""The lowest descriptor for the socket: user code may close or reuse low ones."""


class Connection:
    """The socket, used by all threads of the child. The process ends when it cannot reach the model server."""

    def __init__(self, descriptor: int, on_frame: Callable[[Frame], None]) -> None:
        """
        Take over an inherited descriptor; it is moved out of the way and closed in programs that are executed.

        `on_frame` is called by one thread at a time.
        """
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR)
        os.close(descriptor)
        self._socket = socket.socket(fileno=moved)
        self._on_frame = on_frame
        self._parser = FrameParser()
        self._owner = os.getpid()
        self._sending = threading.Lock()
        self._received = threading.Condition()
        self._is_receiving = False
        threading.Thread(target=_watch, args=(moved,), name="headrace-watch", daemon=True).start()

    def send(self, frames: Sequence[tuple[Kind, dict[str, Any], Buffer]]) -> None:
        """Send frames in one go; a payload over `INLINE_BYTES` as a memory file."""
        self._end_fork()
        try:
            with self._sending:
                self._send(frames)
        except PeerGone:
            os._exit(EXIT_NO_SERVER)
        except OSError as error:
            _end_if_unreachable(error)
            raise

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Receive frames until a condition holds, which depends on frames."""
        self._end_fork()
        with self._received:
            while not condition():
                if self._is_receiving:
                    self._received.wait()
                else:
                    self._receive()

    def poll(self) -> None:
        if os.getpid() == self._owner:
            with self._received:
                if not self._is_receiving:
                    self._receive(socket.MSG_DONTWAIT)

    def _end_fork(self) -> None:
        """End a fork that has left user code: it would answer a second time, and take frames from its parent."""
        if os.getpid() != self._owner:
            os._exit(EXIT_NO_SERVER)

    def _receive(self, flags: int = 0) -> None:
        """
        Wait for bytes without the lock, and hand on the frames that they complete.

        A signal handler of user code may raise while this waits, which takes no byte out of the socket. If it raises
        later, frames may be lost, and the process ends.
        """
        self._is_receiving = True
        self._received.release()
        try:
            self._socket.recv(1, socket.MSG_PEEK | flags)
        except BlockingIOError:
            return
        except OSError as error:
            _end_if_unreachable(error)
            raise
        finally:
            self._received.acquire()
            self._is_receiving = False
            self._received.notify_all()
        try:
            for frame in self._parser.feed(*receive(self._socket)):
                self._on_frame(frame)
        except PeerGone:
            os._exit(EXIT_NO_SERVER)
        except BaseException:  # noqa: BLE001 -- a child that has lost a frame cannot go on
            traceback.print_exc()
            os._exit(EXIT_NO_SERVER)

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


def _end_if_unreachable(error: OSError) -> None:
    """End the process for an error of the socket; a `TimeoutError` of user code's signal handler has no errno."""
    if error.errno is not None:
        traceback.print_exc()
        os._exit(EXIT_NO_SERVER)


def _watch(descriptor: int) -> None:
    """Exit when the model server ends, also while user code computes."""
    watch = select.poll()
    watch.register(descriptor, select.POLLRDHUP)
    watch.poll()
    os._exit(EXIT_NO_SERVER)
