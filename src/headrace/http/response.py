"""Whole responses, each sent at once."""

from collections.abc import Iterable
from typing import Final

from headrace.http.asgi import Message, Scope, Send
from headrace.wire.dialect import ErrorReply

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
