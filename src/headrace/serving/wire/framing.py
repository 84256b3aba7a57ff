"""JSON on the wire: decoding of bodies with actionable errors, encoding, and framing of streamed events."""

import codecs
import heapq
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from headrace.core.client_text import shortened
from headrace.core.errors import InvalidRequest

SSE_CONTENT_TYPE = "text/event-stream"
NDJSON_CONTENT_TYPE = "application/x-ndjson"
"""Of Ollama's streams."""
JSONLINES_CONTENT_TYPE = "application/jsonlines"
JSON_CONTENT_TYPE = "application/json"
UNBUFFERED_HEADERS = (("x-accel-buffering", "no"), ("cache-control", "no-cache"))
"""Headers of a stream that keep proxies from buffering it."""
SSE_KEEP_ALIVE = b":\n\n"
"""An SSE comment: clients skip it."""

_LINE_ENDS = tuple((mark.encode(), b"\\u%04x" % ord(mark)) for mark in "\x85\u2028\u2029")

_MAX_UNKNOWN_FIELDS = 20

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_WHERE = re.compile(r"^(?P<problem>.*) - at `\$(?P<path>.*)`$")
_FLOAT_FOR_INT = re.compile(r"^Expected `.*\bint\b.*`, got `float`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_MAX_INTEGRAL_FLOATS = 12
"""Corrections of one body: each decodes it again, and a list of token ids could ask for thousands."""
_LARGEST_EXACT_FLOAT = 2.0**53
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class MalformedBody(InvalidRequest):
    """The body is not valid JSON; some dialects give it another status than a wrong field."""


def to_json(value: object) -> bytes:
    """Encode as compact JSON in UTF-8 without any Unicode line end; infinities become null."""
    return one_line(_encode(value))


def one_line(data: bytes) -> bytes:
    """
    Return JSON with Unicode's line ends escaped.

    NOTE: JSON allows them unescaped, but readers that split decoded text (httpx `iter_lines`, `str.splitlines`) would
    cut an event in two.
    """
    if data.isascii():
        return data
    for raw, escaped in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, escaped)
    return data


def json_fragment(text: str) -> bytes:
    """Encode text as the inside of a JSON string, for readers that unescape only newlines."""
    return _encode(text)[1:-1]


def json_number(value: float | None) -> bytes:
    """Encode a float (or null) as JSON, for byte templates."""
    return _encode(value)


def sse_event(data: bytes, *, space: bool = True) -> bytes:
    """Frame one server-sent event. TGI 1.0.3 writes no space after the colon."""
    return b"data: %b\n\n" % data if space else b"data:%b\n\n" % data


def json_line(data: bytes) -> bytes:
    return data + b"\n"


def invalid(param: str, reason: str) -> InvalidRequest:
    """Return OpenAI's error for a value, without the full stop at its end."""
    return InvalidRequest(f"Invalid '{param}': {reason}.", param=param)


def missing(param: str) -> InvalidRequest:
    """Return OpenAI's error for a parameter that an object of its type must have."""
    return InvalidRequest(f"Missing required parameter: '{param}'.", param=param)


def without_bom(body: bytes) -> bytes:
    """Return a JSON text without the byte order mark that some clients begin it with; RFC 8259, section 8.1."""
    return body.removeprefix(codecs.BOM_UTF8)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T], *, only_integers: bool = False) -> T:
    """
    Decode a request body into a typed struct; integers may be floats (`2.0`) as in pydantic, or not as in serde.

    Raises:
        MalformedBody: not JSON, including NaN, invalid UTF-8, lone surrogates, too deep nesting, or an empty body.
        InvalidRequest: a field has the wrong type; `param` is its path (`parameters.top_k`).
    """
    try:
        if not body.isascii():
            body.decode()  # the decoder skips the names and texts of fields that it does not know
        return decoder.decode(body)
    except _UNDECODABLE as error:
        return _decode_corrected(body, decoder, error, max_integers=0 if only_integers else _MAX_INTEGRAL_FLOATS)


def _decode_corrected(body: bytes, decoder: msgspec.json.Decoder[T], error: Exception, *, max_integers: int) -> T:
    """Decode a body with integers in place of the integral floats that errors name, or raise why it is refused."""
    for _ in range(max_integers):
        try:
            corrected = _with_integer(body, str(error))
            if corrected is None:
                break
            body = corrected
            return decoder.decode(body)
        except _UNDECODABLE as next_error:
            error = next_error
    raise _refusal(body, error) from error


def _refusal(body: bytes, error: Exception) -> InvalidRequest:
    """Return the error for a body that cannot be decoded."""
    if isinstance(error, msgspec.ValidationError):
        return _wrong_field(str(error))
    text = f"The body is not valid JSON: {str(error).removeprefix('JSON is malformed: ')}."
    if isinstance(error, RecursionError):
        text = "The body is nested too deep."
    elif not body.strip():
        text = "The body is empty; expected a JSON object."
    elif isinstance(error, UnicodeDecodeError):
        text = "The body is not valid UTF-8."
    return MalformedBody(text)


def _with_integer(body: bytes, message: str) -> bytes | None:
    """Return the body with an integer in place of the integral float that a decoder's error names, if it names one."""
    match = _WHERE.match(message)
    if match is None or not _FLOAT_FOR_INT.match(match["problem"]) or "[...]" in match["path"]:
        return None
    parents: list[tuple[Any, str | int]] = []
    raw = msgspec.Raw(body)
    try:
        for name, index in _STEP.findall(match["path"]):
            parents.append((_decode_fields(raw), name) if name else (_decode_items(raw), int(index)))
            raw = parents[-1][0][parents[-1][1]]
        value = float(bytes(raw))
    except (LookupError, ValueError):  # the path leads elsewhere: an object names a field twice
        return None
    if not value.is_integer() or abs(value) > _LARGEST_EXACT_FLOAT:
        return None
    written = b"%d" % value
    for members, key in reversed(parents):
        members[key] = msgspec.Raw(written)
        written = _encode(members)
    return written


@contextmanager
def refusing_deep_nesting() -> Iterator[None]:
    """
    Refuse bodies whose values are too deep for the code in the block, which recurses more than the decoder.

    Raises:
        MalformedBody: the body is nested too deep.
    """
    try:
        yield
    except RecursionError as error:
        raise MalformedBody("The body is nested too deep.") from error


def raw_fields(body: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Return the undecoded top-level fields of a JSON object; empty if the body is anything else."""
    try:
        return _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def field_names(body: bytes) -> frozenset[str]:
    """Return the top-level names of a JSON object; empty if the body is anything else."""
    return frozenset(raw_fields(body))


def shortened_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names that a client sent, sorted, for the log; very many or very long ones are cut."""
    return tuple(shortened(name) for name in heapq.nsmallest(_MAX_UNKNOWN_FIELDS, names))


def _wrong_field(message: str) -> InvalidRequest:
    match = _WHERE.match(message)
    path = "" if match is None else shortened(match["path"].lstrip("."))
    problem = shortened(message if match is None else match["problem"])
    missing = re.match(r"^Object missing required field `(\w+)`$", problem)
    if missing is not None:
        path = f"{path}.{missing[1]}".lstrip(".")
        return InvalidRequest(f"`{path}` is missing.", param=path)
    if not path:
        return InvalidRequest(f"{problem}.")
    return InvalidRequest(f"`{path}`: {problem[:1].lower()}{problem[1:]}.", param=path)
