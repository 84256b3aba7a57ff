"""Middleware for the rule which web pages may use the server (`http.origins`)."""

from collections.abc import Iterable

from headrace.core.errors import Forbidden
from headrace.http.asgi import ASGIApp, Receive, Scope, Send, header
from headrace.http.origins import is_origin_allowed
from headrace.http.response import send_reply
from headrace.wire.unknown_routes import render_error_for


class OriginCheck:
    """Middleware that serves a request with an `Origin` only to the server's own page or an allowed one."""

    def __init__(self, app: ASGIApp, *, allowed: Iterable[str], names_are_trusted: bool) -> None:
        """
        Wrap an application.

        Args:
            app: the application behind.
            allowed: origins that may use the server, as `scheme://host:port`; `*` allows all.
            names_are_trusted: whether a page under any host name of the server is the server's own. On a loopback
                address without a key only `localhost` and addresses are.
        """
        self._app = app
        self._allowed = frozenset(allowed)
        self._names_are_trusted = names_are_trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        origin = header(scope, b"origin") if scope["type"] == "http" else None
        host = header(scope, b"host") or "" if origin is not None else ""
        if is_origin_allowed(origin, host, allowed=self._allowed, names_are_trusted=self._names_are_trusted):
            await self._app(scope, receive, send)
            return
        error = Forbidden(
            f"Pages of {origin!r} may not use this server. To allow them, start it with --cors-allow-origins {origin}."
        )
        await send_reply(scope, send, render_error_for(scope["path"], error))
