"""
Values that the HTTP server and the AWS protocols exchange: a request, a response, and a parsed call.

They are independent of the protocol; the entry point is `calls`.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.serving.wire.aws.errors import AwsError, malformed

Headers = tuple[tuple[str, str], ...]
"""Names in lower case. Values have no control characters and fit into Latin-1."""

Protocol = Literal["json", "rest-json", "smithy-rpc-v2-cbor", "query", "rest-xml"]
"""Protocols by botocore's names. `rest-xml` is S3, whose calls are forwarded, so only its errors are rendered here."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request with the path and query exactly as sent."""

    method: str
    """The method in capitals."""
    path: str
    """The path as sent: percent-encoded, without the query. Signatures cover exactly these characters."""
    query: str
    """The query string as sent, without the question mark."""
    headers: Mapping[str, str]
    """Names in lower case, values decoded as Latin-1; values of a repeated header are joined with commas."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response. The server adds Content-Length and Date."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class AwsCall:
    """A parsed call of an AWS operation."""

    service: str
    """The service by boto3's name: `sagemaker`, `sagemaker-runtime`, `logs`, `sts`, ..."""
    operation: str
    protocol: Protocol
    params: dict[str, Any] = field(default_factory=dict)
    """
    Members by the model's names, with boto3's types, except that timestamps are seconds since 1970 (float).
    Members that were not sent, or sent as null, are absent.
    """


def query_parameter(query: str, name: str) -> str | None:
    """
    Return the last value of a parameter of a query string or a form, as sent; None if it is absent.

    It takes one pass of C code: requests are identified before they are authenticated, so a long query must be cheap.
    """
    _, found, rest = f"&{query}".rpartition(f"&{name}=")
    return rest.partition("&")[0] if found else None


def header_value(text: str) -> str:
    """Return text that is safe in a header: one line of Latin-1, so that no value can inject a second header."""
    one_line = "".join(character if character >= " " and character != "\x7f" else " " for character in text)
    return one_line.strip().encode("latin-1", errors="replace").decode("latin-1")


def inflated(request: HttpRequest, *, max_bytes: int) -> HttpRequest:
    """
    Return the request with its body decompressed, which SDKs compress for large PutMetricData requests.

    Signatures cover the compressed body: verify them first.

    Raises:
        AwsError: the body is not gzip, has another encoding, or is larger than `max_bytes`.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return request
    if encoding != "gzip":
        raise malformed(f"Content-Encoding is {encoding[:100]!r}. Send gzip, or the body as it is.")
    headers = {name: value for name, value in request.headers.items() if name != "content-encoding"}
    return replace(request, headers=headers, body=_gunzipped(request.body, max_bytes))


def _gunzipped(body: bytes, max_bytes: int) -> bytes:
    decoder = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        plain = decoder.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise malformed("Content-Encoding is gzip, but the body is not gzip.") from error
    if len(plain) > max_bytes:
        message = f"The decompressed body has more than {max_bytes} bytes."
        raise AwsError("RequestEntityTooLargeException", message, status=413)
    if not decoder.eof:
        raise malformed("The gzip data of the body is truncated.")
    return plain
