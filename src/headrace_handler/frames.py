"""
Frames between the model server and a child: `u32 length | u8 kind | u32 header length | JSON header | raw bytes`.

They are sent over a Unix stream socket. The length counts everything after it, in network byte order.
Large bodies are not part of frames: each is a memory file (`memfd_create(2)`) whose descriptor is passed with the frame
(`SCM_RIGHTS`), so that it is written once and read once. `memfds` in the header is the number of descriptors.
"""

import array
import json
import os
import socket
import stat
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

INLINE_BYTES = 1 << 20
"""A larger body travels as a memory file."""
WINDOW_CHUNKS = 8
WINDOW_BYTES = 1 << 20
"""A response blocks while this many chunks, or bytes, have not been read by the client."""
MAX_DESCRIPTORS = 253
"""Most descriptors in one message (`SCM_MAX_FD` of Linux)."""

READ_BYTES = 64 * 1024
"""Maximum bytes per receive: the memory for more would be mapped for each call and unmapped after it."""
_MAX_BUFFERS = 512  # the kernel takes 1024
_MAX_HEADER_BYTES = 16 << 20
_MAX_FRAME_BYTES = 1 << 30
MAX_CHILD_HEADER_BYTES = 1 << 20
"""Longest header of a frame from a child: parsing a longer one would hold the server's event loop."""
MAX_MESSAGE_CHARACTERS = 64 * 1024
"""Longest message of a failure, which may take twelve bytes a character in a header."""
_MAX_CHILD_FILES = 4
_MAX_FILE_BYTES = 1 << 30
_BLOCK_BYTES = 512  # of `st_blocks`, whatever the file system
_PREFIX = struct.Struct("!IBI")
_LENGTH_BYTES = 4
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_write_header = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_read_header = json.JSONDecoder().decode

Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """The kinds of frames; those from the child are 16 and more."""

    LOAD = 1
    CALL = 2
    CREDIT = 3
    """The client has read `chunks` and `bytes` of the item `id`."""
    CANCEL = 4
    STOP = 5
    READY = 16
    FAILED = 17
    RESPONSE = 18
    """A whole response of the item `id`."""
    HEAD = 19
    DATA = 20
    END = 21
    ABORT = 22
    DONE = 23
    """The call `call` has ended; the child can take another."""


class BadFrame(Exception):
    """Malformed bytes: something else has written to the socket."""


class PeerGone(Exception):
    """The other side of the socket is closed."""


class Frame(NamedTuple):
    """A received frame; the caller closes its descriptors."""

    kind: int
    header: dict[str, Any]
    payload: memoryview
    descriptors: Sequence[int] = ()


def encode(kind: Kind, header: dict[str, Any], payload: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return the buffers of a frame, for `sendmsg`."""
    head = _write_header(header).encode()
    length = _PREFIX.size - _LENGTH_BYTES + len(head) + sum(map(len, payload))
    return [_PREFIX.pack(length, kind, len(head)) + head, *payload]


class FrameParser:
    """An incremental parser of frames, fed with received bytes and descriptors."""

    def __init__(self, *, is_of_child: bool = False) -> None:
        """Make a parser; frames of a child have tight limits: hostile code may write to its socket."""
        self._max_header, self._max_frame, self._max_files = (
            (MAX_CHILD_HEADER_BYTES, MAX_CHILD_HEADER_BYTES + INLINE_BYTES + _PREFIX.size, _MAX_CHILD_FILES)
            if is_of_child
            else (_MAX_HEADER_BYTES, _MAX_FRAME_BYTES, MAX_DESCRIPTORS)
        )
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def feed(self, data: bytes, descriptors: Sequence[int] = ()) -> Iterator[Frame]:
        """Add received bytes, and yield the frames that they complete. Raises `BadFrame`: they are malformed."""
        self._descriptors += descriptors
        if len(self._descriptors) > self._max_files:
            raise BadFrame(f"{len(self._descriptors)} memory files without frames")
        buffer, at = self._buffer, 0
        buffer += data
        try:
            while (end := self._frame_end(at)) is not None:
                _length, kind, num_head = _PREFIX.unpack_from(buffer, at)
                payload_at = at + _PREFIX.size + num_head
                header = _header(buffer[at + _PREFIX.size : payload_at])
                payload = memoryview(bytes(memoryview(buffer)[payload_at:end]))
                at = end
                yield Frame(kind, header, payload, self._take(header.get("memfds", 0)))
        finally:
            del buffer[:at]

    def close(self) -> None:
        """Close the descriptors of frames that have not arrived."""
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _frame_end(self, start: int) -> int | None:
        """Return the end of the frame that starts there; None while it has not arrived as a whole."""
        if len(self._buffer) - start < _PREFIX.size:
            return None
        length, _kind, num_head = _PREFIX.unpack_from(self._buffer, start)
        is_too_long = length > self._max_frame or num_head > self._max_header
        if is_too_long or _PREFIX.size + num_head > _LENGTH_BYTES + length:
            raise BadFrame(f"frame of {length} bytes with a header of {num_head}")
        end: int = start + _LENGTH_BYTES + length
        return end if end <= len(self._buffer) else None

    def _take(self, num_descriptors: object) -> Sequence[int]:
        if num_descriptors == 0:
            return ()
        if not isinstance(num_descriptors, int) or num_descriptors > len(self._descriptors):
            raise BadFrame(f"frame with {num_descriptors} memory files, but {len(self._descriptors)} have arrived")
        return [self._descriptors.popleft() for _ in range(num_descriptors)]


def _header(text: bytearray) -> dict[str, Any]:
    try:
        header = _read_header(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise BadFrame("header is not an object")
    return header


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """
    Receive bytes and the descriptors that came with them.

    Raises:
        PeerGone: the other side is closed.
        BlockingIOError: nothing has arrived on a non-blocking socket.
    """
    try:
        data, ancillary, _flags, _address = connection.recvmsg(READ_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError as error:
        raise PeerGone from error
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received = array.array("i")
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
            descriptors += received
    if not data:
        raise PeerGone
    return data, descriptors


def send_some(connection: socket.socket, buffers: Sequence[Buffer], descriptors: Sequence[int] = ()) -> int:
    """Send as much of the buffers, with the descriptors, as fits; return the number of bytes sent."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        return connection.sendmsg(buffers[:_MAX_BUFFERS], ancillary, socket.MSG_NOSIGNAL)
    except ConnectionError as error:
        raise PeerGone from error


def after(buffers: Sequence[Buffer], num_bytes: int) -> list[Buffer]:
    """Return the buffers without their first `num_bytes`, which have been sent."""
    rest: list[Buffer] = []
    for buffer in buffers:
        if num_bytes < len(buffer):
            rest.append(memoryview(buffer)[num_bytes:] if num_bytes else buffer)
        num_bytes = max(0, num_bytes - len(buffer))
    return rest


def write_memory_file(content: Buffer) -> int:
    descriptor = os.memfd_create("headrace", os.MFD_CLOEXEC)
    try:
        rest = memoryview(content)
        offset = 0
        while offset < len(rest):
            offset += os.write(descriptor, rest[offset:])
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_memory_file(descriptor: int, num_bytes: int) -> None:
    """Raise `BadFrame` if reading a file of a child would wait, or take memory that the child has not taken itself."""
    facts = os.fstat(descriptor)
    has_all = 0 <= num_bytes <= min(facts.st_size, facts.st_blocks * _BLOCK_BYTES, _MAX_FILE_BYTES)
    if not stat.S_ISREG(facts.st_mode) or not has_all:
        raise BadFrame(f"memory file of {facts.st_size} bytes for {num_bytes}; at most {_MAX_FILE_BYTES}")


def read_memory_file(descriptor: int, num_bytes: int) -> bytearray:
    """Read a memory file into new memory and close it. Raises `BadFrame`: it is shorter than the frame says."""
    try:
        if os.fstat(descriptor).st_size < num_bytes:
            raise BadFrame(f"memory file of fewer than {num_bytes} bytes")
        content = bytearray(num_bytes)
        view, offset = memoryview(content), 0
        while offset < num_bytes:
            num_read = os.preadv(descriptor, [view[offset:]], offset)
            if not num_read:
                raise BadFrame(f"memory file of fewer than {num_bytes} bytes")
            offset += num_read
        return content
    finally:
        os.close(descriptor)
