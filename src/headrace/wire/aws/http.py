"""
What crosses between an HTTP server and the AWS protocols: a request, a response, and the call that a request is.

Nothing here knows a protocol; `calls` is where to begin.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Protocol = Literal["json", "rest-json", "smithy-rpc-v2-cbor", "query", "rest-xml"]
"""As botocore's models name them. `rest-xml` is S3, of which only errors are written here: its calls are forwarded."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as it came over the wire."""

    method: str
    """In capitals."""
    path: str
    """As sent: still percent-encoded, without the query. Signatures cover these very characters."""
    query: str
    """As sent, without the question mark."""
    headers: Mapping[str, str]
    """Names in lower case, values decoded as Latin-1; values of a repeated header are joined with commas."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response. The server adds Content-Length and Date."""

    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case. Values have no control characters and fit into Latin-1."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that somebody asks for."""

    service: str
    """By boto3's name: `sagemaker`, `sagemaker-runtime`, `logs`, `sts`, ..."""
    operation: str
    protocol: Protocol
    params: dict[str, Any] = field(default_factory=dict)
    """
    By the model's names, types as boto3 has them, but for timestamps, which are seconds since 1970 (float).
    Members that were not sent, or sent as null, are absent.
    """


def header_value(text: str) -> str:
    """A text that may stand in a header: one line of Latin-1, so that no value can smuggle in a second header."""
    one_line = "".join(character if character >= " " and character != "\x7f" else " " for character in text)
    return one_line.strip().encode("latin-1", errors="replace").decode("latin-1")
