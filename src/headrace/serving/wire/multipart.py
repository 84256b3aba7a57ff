"""
Read a form (multipart/form-data) while it arrives: bytes in, the heads and the contents of its parts out.

Pure, and in bounded memory: a content is passed on piece by piece. Sources: RFC 7578; RFC 2046, section 5.1.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from headrace.core.errors import InvalidRequest
from headrace_handler.client_data import parameter

MAX_PARTS: Final = 16
_MAX_BOUNDARY_CHARACTERS: Final = 200
_MAX_HEAD_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class PartHead:
    """The begin of a part; its content follows, until the next head or the end."""

    name: str
    filename: str
    """Empty for a field that is no file."""


class _State(Enum):
    PREAMBLE = auto()
    HEAD = auto()
    CONTENT = auto()
    END = auto()


class FormReader:
    """Splits one form into its parts."""

    def __init__(self, content_type: str) -> None:
        """Prepare to read the form that a Content-Type describes. Raises `InvalidRequest` if it is no form."""
        kind, _, _ = content_type.partition(";")
        if kind.strip().lower() != "multipart/form-data":
            shown = kind.strip()[:100] or "missing"
            raise InvalidRequest(f"The Content-Type is {shown!r}; expected multipart/form-data with a file.")
        boundary = _parameter(content_type, "boundary")
        if not 0 < len(boundary) <= _MAX_BOUNDARY_CHARACTERS:
            raise InvalidRequest(
                f"The boundary of the form has {len(boundary)} characters; "
                f"expected 1 to {_MAX_BOUNDARY_CHARACTERS}, in the Content-Type."
            )
        self._separator = b"\r\n--" + boundary.encode("latin-1", "replace")
        self._buffer = b"\r\n"  # the first boundary has no line end before it
        self._state = _State.PREAMBLE
        self._num_parts = 0

    @property
    def is_complete(self) -> bool:
        """True after the closing boundary; what follows it is ignored."""
        return self._state is _State.END

    def feed(self, data: bytes) -> Iterator[PartHead | bytes]:
        """Yield the heads of parts and pieces of their contents. Raises `InvalidRequest` for a malformed form."""
        if self._state is _State.END:
            return
        self._buffer += data
        while True:
            if self._state is _State.HEAD:
                head = self._read_head()
                if head is None:
                    return
                yield head
            content, is_whole = self._read_content()
            if content and self._state is _State.CONTENT:
                yield content
            if not is_whole:
                return
            self._state = _State.HEAD

    def _read_content(self) -> tuple[bytes, bool]:
        """Take what belongs to the content off the buffer; True: a boundary follows it."""
        at = self._buffer.find(self._separator)
        if at >= 0:
            content, self._buffer = self._buffer[:at], self._buffer[at + len(self._separator) :]
            return content, True
        end = max(0, len(self._buffer) - len(self._separator) + 1)  # the rest may begin a boundary
        content, self._buffer = self._buffer[:end], self._buffer[end:]
        return content, False

    def _read_head(self) -> PartHead | None:
        """Take a head off the buffer; None: more bytes are needed, or the form has ended."""
        if self._buffer.startswith(b"--"):
            self._state, self._buffer = _State.END, b""
            return None
        end = self._buffer.find(b"\r\n\r\n", 0, _MAX_HEAD_BYTES)
        if end < 0:
            if len(self._buffer) >= _MAX_HEAD_BYTES:
                raise InvalidRequest(f"A part of the form has a head of {_MAX_HEAD_BYTES} bytes or more. Send less.")
            return None
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"The form has more than {MAX_PARTS} parts. Send fewer.")
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        self._state = _State.CONTENT
        return _parse_head(head)


def _parse_head(head: bytes) -> PartHead:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            return PartHead(_parameter(value, "name"), _parameter(value, "filename"))
    raise InvalidRequest("A part of the form has no Content-Disposition; expected one with a name.")


def _parameter(value: str, name: str) -> str:
    try:
        return parameter(value, name)
    except ValueError as error:
        raise InvalidRequest(f"The form cannot be read: {error}") from error
