"""
Web pages of strangers may not use the server of somebody who visits them.

The rule is `core.origins.may_use`; here it is middleware.
"""

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.core.errors import Forbidden
from headrace.http.origins import may_use
from headrace.server.errors import send_error
from headrace.wire.unknown_routes import render_error_for


class RefuseStrangers:
    """Middleware: a request with an `Origin` must come from the server's own page or from an allowed one."""

    def __init__(self, app: ASGIApp, *, allowed: Iterable[str], names_are_trusted: bool) -> None:
        """
        Wrap `app`.

        Args:
            app: what is behind.
            allowed: origins that may use the server, as `scheme://host:port`; `*` is all.
            names_are_trusted: whether a page under any host name that leads here is the server's own. Not so on a
                loopback address without a key, where only `localhost` and addresses are.
        """
        self._app = app
        self._allowed = frozenset(allowed)
        self._names_are_trusted = names_are_trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        origin = _header(scope, b"origin") if scope["type"] == "http" else None
        host = _header(scope, b"host") or "" if origin is not None else ""
        if may_use(origin, host, allowed=self._allowed, names_are_trusted=self._names_are_trusted):
            await self._app(scope, receive, send)
            return
        error = Forbidden(
            f"Pages of {origin!r} may not use this server. To allow them, start it with --cors-allow-origins {origin}."
        )
        await send_error(send, render_error_for(scope["path"], error))


def _header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return str(value.decode("latin-1"))
    return None
