"""ASGI types, accessors of a request's scope, whole responses, and the extension that writes parts of a stream."""

import hmac
from collections.abc import Callable, Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.serving.wire.aws.http import HttpRequest
from headrace.serving.wire.aws.sessions import Session
from headrace.serving.wire.dialect import ErrorReply
from headrace.serving.wire.key_limits import KeyLimits
from headrace.serving.wire.unknown_routes import MESSAGES

__all__ = ["ASGIApp", "Message", "Receive", "Scope", "Send"]

WRITE_PART = "headrace.write_part"
"""The ASGI extension of `http.protocol`; it is optional for servers and applications."""

TRAILERS = "headrace.trailers"
"""The key, in the last message of a chunked body, of the header fields that follow it; `http.protocol` writes them."""

_CALLER = "headrace.caller"
_SESSION = "headrace.session"
_LIMITS = "headrace.limits"

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


def error_path(scope: Scope, path: str | None = None) -> str:
    """
    Return the path in whose format an error is rendered: the request's, or `path` in place of it.

    Anthropic's clients share `/v1/models` and `/v1/files` with OpenAI's; only they send the version of their API.
    """
    path = scope["path"] if path is None else path
    is_anthropic = path.startswith("/v1/") and header(scope, b"anthropic-version") is not None
    return MESSAGES if is_anthropic else path


def has_token(scope: Scope, token: str) -> bool:
    """Return whether a request carries a bearer token, compared in constant time."""
    sent = header(scope, b"authorization") or ""
    return hmac.compare_digest(sent.encode("latin-1"), f"Bearer {token}".encode())


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


def session_of(scope: Scope) -> Session | None:
    """Return what the temporary credentials of a request are for; None: it has none."""
    session: Session | None = scope.get(_SESSION)
    return session


def limits_of(scope: Scope) -> KeyLimits | None:
    """Return the limits of the access key that admitted the request; None: it may use everything."""
    limits: KeyLimits | None = scope.get(_LIMITS)
    return limits


def set_caller(scope: Scope, access_key: str, session: Session | None = None, limits: KeyLimits | None = None) -> None:
    """Name the caller of a request for the applications behind its authentication."""
    scope[_CALLER], scope[_SESSION], scope[_LIMITS] = access_key, session, limits


def part_writer(scope: Scope) -> WritePart | None:
    """Return the writer of the server's extension; None if the server has none."""
    writer: WritePart | None = (scope.get("extensions") or {}).get(WRITE_PART)
    return writer


Headers = Iterable[tuple[str, str]]
Body = bytes | bytearray | memoryview
BODILESS: Final = frozenset((204, 304))
"""Statuses without a body, and so without its length (RFC 9110, section 8.6)."""


async def send_response(scope: Scope, send: Send, status: int, headers: Headers, body: Body) -> None:
    """Send a response with its Content-Length; responses to HEAD, 204 and 304 have no body."""
    for message in response_messages(scope, status, headers, body):
        await send(message)


def response_messages(scope: Scope, status: int, headers: Headers, body: Body) -> tuple[Message, Message]:
    is_bodiless = status in BODILESS
    sent = b"" if is_bodiless or scope["method"] == "HEAD" else body
    length = () if is_bodiless else (("content-length", str(len(body))),)
    return (
        head_message(status, (*headers, *length)),
        {"type": "http.response.body", "body": sent, "more_body": False},
    )


async def send_reply(scope: Scope, send: Send, reply: ErrorReply, headers: Headers = ()) -> None:
    """Send an error as its dialect renders it, with additional headers."""
    headers = (("content-type", reply.content_type), *reply.headers, *headers)
    await send_response(scope, send, reply.status, headers, reply.body)


def head_message(status: int, headers: Headers) -> Message:
    """Return the message with status and headers. Raises `UnicodeEncodeError` for a header that is not Latin-1."""
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": encoded}


def has_length(head: Message) -> bool:
    return any(name.lower() == b"content-length" for name, _ in head.get("headers", ()))


def add_headers(send: Send, headers: Headers) -> Send:
    added = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return send_with_headers


def close_after(send: Send) -> Send:
    """Return a `send` that closes the connection after the response, so that clients connect elsewhere."""
    return add_headers(send, (("connection", "close"),))  # uvicorn obeys it, too
