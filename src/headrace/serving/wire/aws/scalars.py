"""
Conversion of scalars to and from text in forms, XML, headers and paths, and of timestamps in all formats.

Timestamps are seconds since 1970 (float) inside Headrace.
"""

import base64
import binascii
import math
import re
from datetime import UTC, datetime
from email.utils import formatdate, parsedate_to_datetime
from typing import Any

from botocore.model import Shape

from headrace.serving.wire.aws.errors import malformed

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]{1,400}(\.[0-9]{0,400})?|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?", re.ASCII)
_BITS = {"integer": 32, "long": 64}
_A = {"boolean": "a Boolean", "double": "a Float", "float": "a Float", "integer": "an Integer", "long": "a Long"}
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LAST_MOMENT_S = 253_402_300_799.0
"""The end of the year 9999, the last date that can be formatted."""


def from_text(text: str, shape: Shape, where: str) -> Any:
    """Parse a scalar of a shape. Raises `AwsError`, which names the member `where`."""
    kind = shape.type_name
    if kind == "timestamp":
        return moment(text, where)
    if kind == "blob":
        return blob(text, where)
    if kind in ("integer", "long") and _INTEGER.fullmatch(text):
        return in_range(int(text), kind, where)
    if kind in ("float", "double") and (text in _SPECIAL_FLOATS or _NUMBER.fullmatch(text)):
        return float(text) if (special := special_float(text)) is None else special
    if kind == "boolean" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind not in _A:
        return text
    raise malformed(f"STRING_VALUE can not be converted to {_A[kind]} (at '{where}'): '{_shown(text)}'.")


def to_text(value: Any, shape: Shape, *, timestamp_format: str = "iso8601") -> str:
    kind = shape.type_name
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "timestamp":
        return str(from_moment(value, shape.serialization.get("timestampFormat", timestamp_format)))
    if kind == "blob":
        return blob_text(value)
    if kind in ("float", "double"):
        return float_text(float(value))
    return str(value)


def in_range(number: int, kind: str, where: str) -> int:
    """Return the number if it fits into 32 or 64 bits. Raises `AwsError`."""
    half = 1 << (_BITS[kind] - 1)
    if not -half <= number < half:
        raise malformed(f"NUMBER_VALUE does not fit into {_BITS[kind]} bits (at '{where}').")
    return number


def special_float(text: str) -> float | None:
    """Parse an infinity or NaN, which JSON numbers cannot represent."""
    return _SPECIAL_FLOATS.get(text)


def float_text(value: float) -> str:
    """Format a float, with infinities and NaN in AWS's spelling."""
    return next((name for name, special in _SPECIAL_FLOATS.items() if repr(special) == repr(value)), repr(value))


def blob(text: str, where: str) -> bytes:
    """Decode base64. Raises `AwsError`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise malformed(f"The blob is not valid base64 (at '{where}').") from error


def blob_text(value: bytes | str) -> str:
    """Encode bytes, or text in UTF-8, as base64."""
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode("ascii")


def moment(value: str | float, where: str) -> float:
    """Parse a timestamp: a number, its text, ISO 8601 or an HTTP date. Raises `AwsError`."""
    try:
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            when = parsedate_to_datetime(value) if "," in value else datetime.fromisoformat(value)
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        else:
            seconds = float(value)
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise malformed(f"'{_shown(value)}' is not a timestamp (at '{where}').") from error
    if not -_LAST_MOMENT_S <= seconds <= _LAST_MOMENT_S:
        raise malformed(f"'{_shown(value)}' is not a timestamp (at '{where}').")
    return seconds


def from_moment(value: float | datetime, timestamp_format: str) -> str | float:
    """Format a timestamp in one of the formats of botocore's models, with milliseconds if the format has them."""
    seconds = round(value.timestamp() if isinstance(value, datetime) else float(value), 3)
    name = timestamp_format.lower()
    if name == "unixtimestamp":
        return seconds
    if name == "rfc822":
        return formatdate(int(seconds), usegmt=True)
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:100] + "..."
