"""The end of connections while a server drains."""

from collections.abc import Callable

from headrace.http.asgi import ASGIApp, Receive, Scope, Send
from headrace.http.response import close_after


class CloseConnections:
    """Middleware that closes each connection after its response while the server drains."""

    def __init__(self, app: ASGIApp, *, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        await self._app(scope, receive, close_after(send) if self._is_draining() else send)
