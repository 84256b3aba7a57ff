"""
Split an object into records, and records into the bodies of requests. Pure: parts of the object in, bodies out.

With several records in a request, binary records keep their framing; one by one they are sent without it. Source:
SageMaker API reference, TransformInput, SplitType. Formats: Apache MXNet's RecordIO and TensorFlow's TFRecord.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_MAGIC: Final = 0xCED7230A
_MAGIC_BYTES: Final = struct.pack("<I", _MAGIC)
_LENGTH_BITS: Final = 29
_FRAMING_BYTES: Final = 64


class InputBroken(Exception):
    """An object cannot be split into requests; the message says why."""


class _Found(NamedTuple):
    end: int
    """Where the record ends in the buffer."""
    payload: bytes
    """The record alone."""
    framed: bytes
    """The record as it goes into a request with others."""


_Find = Callable[[bytes, int, bool], _Found | None]
"""Find the record that begins at a position; None: more bytes are needed. The flag: these are the last ones."""


def _whole(buffer: bytes, start: int, is_end: bool) -> _Found | None:
    content = buffer[start:]
    return _Found(len(buffer), content, content) if is_end else None


def _line(buffer: bytes, start: int, is_end: bool) -> _Found | None:
    end = buffer.find(b"\n", start)
    if end < 0:
        return _Found(len(buffer), buffer[start:], buffer[start:] + b"\n") if is_end else None
    return _Found(end + 1, buffer[start:end], buffer[start : end + 1])


def _record_io(buffer: bytes, start: int, _is_end: bool) -> _Found | None:
    """Find a record of one or more chunks; between two of them the format leaves out a magic number of the data."""
    position, payload = start, b""
    while position + 8 <= len(buffer):
        magic, coded = struct.unpack_from("<II", buffer, position)
        if magic != _MAGIC:
            raise InputBroken("It is not a RecordIO file: a record does not begin with the magic number.")
        flag, length = coded >> _LENGTH_BITS, coded & ((1 << _LENGTH_BITS) - 1)
        end = position + 8 + length
        if end > len(buffer):
            return None
        payload += (_MAGIC_BYTES if flag in (2, 3) else b"") + buffer[position + 8 : end]
        position = end + -length % 4
        if flag in (0, 3):
            return _Found(position, payload, buffer[start:position]) if position <= len(buffer) else None
    return None


def _tf_record(buffer: bytes, start: int, _is_end: bool) -> _Found | None:
    if start + 12 > len(buffer):
        return None
    (length,) = struct.unpack_from("<Q", buffer, start)
    end = start + 12 + length + 4
    return _Found(end, buffer[start + 12 : end - 4], buffer[start:end]) if end <= len(buffer) else None


_FIND: Final[dict[str, _Find]] = {"None": _whole, "Line": _line, "RecordIO": _record_io, "TFRecord": _tf_record}


class Splitter:
    """Forms the bodies of requests from the parts of one object."""

    def __init__(self, split_type: str, *, is_multi_record: bool, max_bytes: int) -> None:
        self._find = _FIND[split_type]
        self._is_by_line = split_type == "Line"
        self._is_multi = is_multi_record and split_type != "None"
        self._max_bytes = max_bytes
        self._buffer = b""
        self._waiting: list[bytes] = []
        self._num_waiting_bytes = 0

    def feed(self, part: bytes, *, is_end: bool = False) -> Iterator[bytes]:
        """Yield the bodies that are complete. Raises `InputBroken`."""
        buffer, position = self._buffer + part, 0
        while position < len(buffer):
            found = self._find(buffer, position, is_end)
            if found is None:
                break
            position = found.end
            yield from self._add(found)
        self._buffer = buffer[position:]
        if len(self._buffer) > 2 * self._max_bytes + _FRAMING_BYTES:
            raise self._too_large()
        if is_end and self._buffer:
            raise InputBroken("Its last record is incomplete.")
        if is_end and self._waiting:
            yield self._take()

    def _add(self, found: _Found) -> Iterator[bytes]:
        if self._is_by_line and not found.payload.strip():
            return  # an empty line is no record
        record = found.framed if self._is_multi else found.payload
        if len(record) > self._max_bytes:
            raise self._too_large()
        if not self._is_multi:
            yield record
            return
        if self._waiting and self._num_waiting_bytes + len(record) > self._max_bytes:
            yield self._take()
        self._waiting.append(record)
        self._num_waiting_bytes += len(record)

    def _take(self) -> bytes:
        body, self._waiting, self._num_waiting_bytes = b"".join(self._waiting), [], 0
        return body

    def _too_large(self) -> InputBroken:
        return InputBroken(
            f"Too much data for max payload size: a record has more than {self._max_bytes} bytes (MaxPayloadInMB)."
        )
