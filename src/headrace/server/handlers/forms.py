"""
Request bodies as parts: the fields of a form, or the body as a whole.

Sources: RFC 7578 (multipart/form-data), RFC 2046 section 5.1.1 (boundaries), the URL standard (urlencoded forms).
"""

import asyncio
from collections.abc import Iterator
from itertools import islice
from urllib.parse import unquote_to_bytes

from headrace.core.errors import InvalidRequest
from headrace.handlers.exchange import RequestPart, request_part
from headrace_handler.client_data import parameter
from headrace_handler.frames import Buffer

MAX_FIELDS = 1000
_MAX_HEAD_BYTES = 16 * 1024
_MAX_HEADERS = 16
"""Headers of a part; clients send three at most."""
_MAX_BOUNDARY_LENGTH = 200
"""RFC 2046 allows 70."""
_INLINE_BYTES = 64 * 1024
"""Longer forms are read on a thread: a form of many fields takes milliseconds for each megabyte."""

Field = tuple[str, str | None, Buffer]
"""Name, content type and content of a field."""


async def body_parts(body: bytes, content_type: str | None, *, reads_forms: bool) -> list[RequestPart]:
    """
    Return the parts of a body, large contents in memory files; if `reads_forms`, the fields of a form one by one.

    Raises `InvalidRequest` if the form is malformed or has too many fields.
    """
    kind, _, _ = (content_type or "").partition(";")
    read = _READERS.get(kind.strip().lower()) if reads_forms else None
    if read is None:
        return [await request_part(body, content_type=content_type)]
    is_small = len(body) <= _INLINE_BYTES
    fields = read(body, content_type or "") if is_small else await asyncio.to_thread(read, body, content_type or "")
    return [await request_part(content, name=name, content_type=kind) for name, kind, content in fields]


def urlencoded_fields(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield names and values of an urlencoded form; raise `InvalidRequest` if it has too many fields."""
    if body.count(b"&") >= MAX_FIELDS:  # before they are decoded, which takes seconds for a million
        raise _too_many_fields()
    for pair in filter(None, body.split(b"&")):
        name, _, value = pair.partition(b"=")
        yield _unquoted(name).decode(errors="replace"), _unquoted(value)


def multipart_fields(body: bytes, boundary: str) -> Iterator[Field]:
    """Yield name, content type and content of each field; raise `InvalidRequest` if the form is malformed."""
    if not boundary:
        raise InvalidRequest("The Content-Type multipart/form-data has no boundary; expected one.")
    if len(boundary) > _MAX_BOUNDARY_LENGTH:
        raise InvalidRequest(
            f"The boundary has {len(boundary)} characters; expected at most {_MAX_BOUNDARY_LENGTH}. Use a shorter one."
        )
    delimiter = b"--" + boundary.encode("latin-1", "replace")
    at = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if not body.startswith(delimiter, at):
        raise InvalidRequest("The form has no part; expected the boundary that its Content-Type names.")
    view, separator = memoryview(body), b"\r\n" + delimiter
    while True:
        start = at + len(delimiter)
        if body.startswith(b"--", start):
            return
        end = body.find(separator, start)
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_HEAD_BYTES)
        if end < 0 or not start < head_end < end + 4:
            raise InvalidRequest("The form ends within a part; expected its closing boundary.")
        name, kind = _field(body[start:head_end])
        yield name, kind, view[min(head_end + 4, end) : end]
        at = end + 2


def _unquoted(text: bytes) -> bytes:
    """Decode a name or a value piece by piece: one call for 6 MB would keep all other threads waiting for 0.4 s."""
    text = text.replace(b"+", b" ")
    pieces, at = [], 0
    while at < len(text):
        end = at + _INLINE_BYTES
        begun = text.find(b"%", end - 2, end)  # an escape that the end would cut
        end = end if begun < 0 else begun
        pieces.append(unquote_to_bytes(text[at:end]))
        at = end
    return b"".join(pieces)


def _too_many_fields() -> InvalidRequest:
    return InvalidRequest(f"The form has too many fields; expected at most {MAX_FIELDS}. Send fewer.")


def _read_multipart(body: bytes, content_type: str) -> list[Field]:
    fields = list(islice(multipart_fields(body, _parameter(content_type, "boundary")), MAX_FIELDS + 1))
    if len(fields) > MAX_FIELDS:
        raise _too_many_fields()
    return fields


def _read_urlencoded(body: bytes, _content_type: str) -> list[Field]:
    return [(name, None, value) for name, value in urlencoded_fields(body)]


_READERS = {"multipart/form-data": _read_multipart, "application/x-www-form-urlencoded": _read_urlencoded}


def _field(head: bytes) -> tuple[str, str | None]:
    """Return the name and the content type of the headers of a part."""
    name, kind = "", None
    lines = head.decode("utf-8", "replace").split("\r\n", _MAX_HEADERS + 1)
    if len(lines) > _MAX_HEADERS + 1:  # the first one ends the boundary
        raise InvalidRequest(f"A part of the form has more than {_MAX_HEADERS} headers. Send fewer.")
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            name = _parameter(value, "name")
        elif key.strip().lower() == "content-type":
            kind = value.strip()
    return name, kind


def _parameter(value: str, name: str) -> str:
    try:
        return parameter(value, name)
    except ValueError as error:
        raise InvalidRequest(f"The form cannot be read: {error}") from error
