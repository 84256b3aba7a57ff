"""JSON on the wire: decoding bodies with errors to act on, encoding, and the frames around streamed events."""

import heapq
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest

SSE_CONTENT_TYPE = "text/event-stream"
JSONLINES_CONTENT_TYPE = "application/jsonlines"
JSON_CONTENT_TYPE = "application/json"
SSE_KEEP_ALIVE = b":\n\n"
"""An SSE comment: clients skip it."""

_LINE_ENDS = tuple((mark.encode(), b"\\u%04x" % ord(mark)) for mark in "\x85\u2028\u2029")

_MAX_UNKNOWN_FIELDS = 20

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_WHERE = re.compile(r"^(?P<what>.*) - at `\$(?P<path>.*)`$")


class MalformedBody(InvalidRequest):
    """The body is not JSON at all; some dialects give it another status than a wrong field."""


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8 that is one line to every reader; infinities become null."""
    return one_line(_encode(value))


def one_line(data: bytes) -> bytes:
    """
    JSON with Unicode's line ends escaped.

    NOTE: JSON allows them as they are, but readers that split decoded text (httpx `iter_lines`, `str.splitlines`) would
    cut an event in two.
    """
    if data.isascii():
        return data
    for raw, escaped in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def json_fragment(text: str) -> bytes:
    """A text as it stands between the quotes of a JSON string, for readers that undo no escape but the newline."""
    return _encode(text)[1:-1]


def json_number(value: float | None) -> bytes:
    """A float (or null) as JSON, for byte templates."""
    return _encode(value)


def sse_event(data: bytes, *, space: bool = True) -> bytes:
    """One server-sent event. TGI 1.0.3 wrote no space after the colon."""
    return b"data: %b\n\n" % data if space else b"data:%b\n\n" % data


def json_line(data: bytes) -> bytes:
    """One line of JSON lines."""
    return data + b"\n"


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """
    Decode a request body into a typed struct.

    Raises:
        MalformedBody: not JSON (also NaN, invalid UTF-8, lone surrogates, nested too deep, empty).
        InvalidRequest: a field has the wrong type; `param` is its path (`parameters.top_k`).
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(body, error) from error
    except RecursionError as error:
        raise MalformedBody("The body is nested too deep.") from error


@contextmanager
def refusing_deep_nesting() -> Iterator[None]:
    """
    Around code that walks values of a body: the decoder lets through what is nearly too deep to walk.

    Raises:
        MalformedBody: it was too deep.
    """
    try:
        yield
    except RecursionError as error:
        raise MalformedBody("The body is nested too deep.") from error


def raw_fields(body: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields at the top of a JSON object, undecoded; empty when the body is anything else."""
    try:
        return _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def field_names(body: bytes) -> frozenset[str]:
    """The names at the top of a JSON object; empty when the body is anything else."""
    return frozenset(raw_fields(body))


def shortened_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names that a client sent, sorted, for the log; of very many or very long ones the beginning."""
    return tuple(shortened(name) for name in heapq.nsmallest(_MAX_UNKNOWN_FIELDS, names))


def _malformed(body: bytes, error: Exception) -> MalformedBody:
    if not body.strip():
        return MalformedBody("The body is empty, a JSON object was expected.")
    if isinstance(error, UnicodeDecodeError):
        return MalformedBody("The body is not valid UTF-8.")
    return MalformedBody(f"The body is not valid JSON: {str(error).removeprefix('JSON is malformed: ')}.")


def _wrong_field(message: str) -> InvalidRequest:
    found = _WHERE.match(message)
    path = "" if found is None else shortened(found["path"].lstrip("."))
    what = shortened(message if found is None else found["what"])
    missing = re.match(r"^Object missing required field `(\w+)`$", what)
    if missing is not None:
        path = f"{path}.{missing[1]}".lstrip(".")
        return InvalidRequest(f"`{path}` is missing.", param=path)
    if not path:
        return InvalidRequest(f"{what}.")
    return InvalidRequest(f"`{path}`: {what[:1].lower()}{what[1:]}.", param=path)
