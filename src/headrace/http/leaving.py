"""Answers of a server that was told to stop and still serves: each is the last one of its connection."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class CloseConnections:
    """Middleware: while `is_leaving()`, clients are told to open their next connection elsewhere."""

    def __init__(self, app: ASGIApp, *, is_leaving: Callable[[], bool]) -> None:
        self._app = app
        self._is_leaving = is_leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        await self._app(scope, receive, closing(send) if self._is_leaving() else send)


def closing(send: Send) -> Send:
    """Send with `Connection: close`, which also makes uvicorn close the connection after the answer."""

    async def send_closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_closing
