"""ASGI types, accessors for the scope of a request, and the extension that writes parts of a stream."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.wire.aws.http import HttpRequest

__all__ = ["ASGIApp", "Message", "Receive", "Scope", "Send"]

WRITE_PART = "headrace.write_part"
"""The ASGI extension of `http.protocol`; it is optional for servers and applications."""

_CALLER = "headrace.caller"

WritePart = Callable[[bytes], bool]
"""
Writes a part of a chunked body whose head was sent; it does nothing after the client has disconnected, or if the
response has no body. False: the client does not keep up; wait (with an empty part, by ASGI's `send`) before the next.
"""


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first value of a header, `name` in lower case; None if it was not sent."""
    for sent, value in scope["headers"]:
        if sent == name:
            return str(value.decode("latin-1"))
    return None


def content_length(scope: Scope) -> int:
    """Return the declared length of the body; 0 if none is declared."""
    text = header(scope, b"content-length") or ""
    return int(text) if text.isdigit() else 0


def content_encoding(scope: Scope) -> str | None:
    """Return the coding in which the body was sent; None if it was sent as it is."""
    coding = (header(scope, b"content-encoding") or "").strip()
    return None if coding.lower() in {"", "identity"} else coding


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers by their names in lower case; the values of a repeated one are joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def request_of(scope: Scope, body: bytes = b"") -> HttpRequest:
    """Return the request with its path as sent: signatures cover exactly these characters."""
    raw_path = scope.get("raw_path") or scope["path"].encode()
    return HttpRequest(
        method=scope["method"],
        path=raw_path.decode("latin-1"),
        query=scope["query_string"].decode("latin-1"),
        headers=headers_of(scope),
        body=body,
    )


def caller_of(scope: Scope) -> str:
    """Return the id of the access key that admitted the request; empty where callers are not distinguished."""
    return str(scope.get(_CALLER, ""))


def set_caller(scope: Scope, access_key: str) -> None:
    """Name the caller of a request for the applications behind its authentication."""
    scope[_CALLER] = access_key


def part_writer(scope: Scope) -> WritePart | None:
    """Return the writer of the server's extension; None if the server has none."""
    writer: WritePart | None = (scope.get("extensions") or {}).get(WRITE_PART)
    return writer
