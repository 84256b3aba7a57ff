"""ASGI in the terms of `wire.aws.http`, and back."""

from starlette.types import Receive, Scope, Send

from headrace.wire.aws.http import HttpRequest, HttpResponse


class BodyTooLarge(Exception):
    """The body has more bytes than may be held."""


def headers_of(scope: Scope) -> dict[str, str]:
    """Names in lower case; values of a repeated header joined with commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def request_of(scope: Scope, body: bytes = b"") -> HttpRequest:
    """The request as it came."""
    raw_path = scope.get("raw_path") or scope["path"].encode()
    return HttpRequest(
        method=scope["method"],
        path=raw_path.decode("latin-1"),
        query=scope["query_string"].decode("latin-1"),
        headers=headers_of(scope),
        body=body,
    )


async def read_body(receive: Receive, *, max_bytes: int) -> bytes:
    """
    The whole body.

    Raises:
        BodyTooLarge: it is larger than `max_bytes`.
        ConnectionError: the client went away in its middle.
    """
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client went away")
        piece = message.get("body", b"")
        size += len(piece)
        if size > max_bytes:
            raise BodyTooLarge
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)


def replay(body: bytes, receive: Receive) -> Receive:
    """`receive` for an application that reads a body which was read already."""
    is_given = False

    async def receive_again() -> dict[str, object]:
        nonlocal is_given
        if is_given:
            return dict(await receive())
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def send_response(scope: Scope, send: Send, response: HttpResponse) -> None:
    """A whole response; without its body where HEAD was asked."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else response.body})
