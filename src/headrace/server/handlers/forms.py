"""
Request bodies as parts: the fields of a form, or the body as a whole.

Sources: RFC 7578 (multipart/form-data), RFC 2046 section 5.1.1 (boundaries), the URL standard (urlencoded forms).
"""

from collections.abc import Iterator
from email.message import Message
from itertools import islice
from urllib.parse import parse_qsl

from headrace.core.errors import InvalidRequest
from headrace.handlers.exchange import RequestPart, request_part
from headrace_handler.frames import Buffer

MAX_FIELDS = 1000
_MAX_HEAD_BYTES = 16 * 1024


async def body_parts(body: bytes, content_type: str | None, *, reads_forms: bool) -> list[RequestPart]:
    """
    Return the parts of a body; large contents in memory files.

    Args:
        body: the request body.
        content_type: as the client sent it.
        reads_forms: whether the contract takes the fields of a form one by one.

    Raises:
        InvalidRequest: the form is malformed or has too many fields.
    """
    kind, _, _ = (content_type or "").partition(";")
    match kind.strip().lower() if reads_forms else "":
        case "multipart/form-data":
            found = multipart_fields(body, _parameter(content_type or "", "boundary"))
            fields = list(islice(found, MAX_FIELDS + 1))
        case "application/x-www-form-urlencoded":
            fields = [(name, None, value) for name, value in urlencoded_fields(body)]
        case _:
            return [await request_part(body, content_type=content_type)]
    if len(fields) > MAX_FIELDS:
        raise _too_many_fields()
    return [await request_part(content, name=name, content_type=kind) for name, kind, content in fields]


def urlencoded_fields(body: bytes) -> Iterator[tuple[str, bytes]]:
    """
    Yield names and values of an urlencoded form.

    Raises:
        InvalidRequest: it has too many fields.
    """
    if body.count(b"&") >= MAX_FIELDS:  # before they are decoded, which takes seconds for a million
        raise _too_many_fields()
    for name, value in parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1"):
        yield name.encode("latin-1").decode(errors="replace"), value.encode("latin-1")


def multipart_fields(body: bytes, boundary: str) -> Iterator[tuple[str, str | None, Buffer]]:
    """
    Yield name, content type and content of each field.

    Raises:
        InvalidRequest: the form is malformed.
    """
    if not boundary:
        raise InvalidRequest("The Content-Type multipart/form-data has no boundary; expected one.")
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


def _too_many_fields() -> InvalidRequest:
    return InvalidRequest(f"The form has too many fields; expected at most {MAX_FIELDS}. Send fewer.")


def _field(head: bytes) -> tuple[str, str | None]:
    name, kind = "", None
    for line in head.decode("utf-8", "replace").split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            name = _parameter(value, "name")
        elif key.strip().lower() == "content-type":
            kind = value.strip()
    return name, kind


def _parameter(value: str, name: str) -> str:
    message = Message()
    message["content-disposition"] = value.replace("\r", "").replace("\n", "")
    found = message.get_param(name, header="content-disposition")
    return found if isinstance(found, str) else found[2] if found else ""
