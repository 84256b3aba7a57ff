"""Middleware that checks which web pages may use the server (`http.origins`)."""

from collections.abc import Iterable

from headrace.core.errors import Forbidden
from headrace.http.asgi import ASGIApp, Receive, Scope, Send, header
from headrace.http.host_refusal import host_refusal, is_navigation, send_host_page
from headrace.http.origins import is_host_allowed, is_origin_allowed
from headrace.http.response import send_reply
from headrace.settings.server_settings import env_name
from headrace.wire.unknown_routes import render_error_for


class OriginCheck:
    """Middleware that serves requests under the server's host names, and pages only if they are its own or allowed."""

    def __init__(self, app: ASGIApp, *, origins: Iterable[str], hosts: Iterable[str]) -> None:
        """
        Wrap an application.

        Args:
            app: the application to wrap.
            origins: origins that may use the server, as `scheme://host:port`; `*` allows all.
            hosts: patterns of the server's host names (`http.origins.allowed_patterns`).
        """
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin, host = header(scope, b"origin"), header(scope, b"host") or ""
        # An allowed page may reach the server by any name: its origin cannot be another owner's.
        if origin not in self._origins and not is_host_allowed(host, self._hosts):
            await _refuse_host(scope, send, host)
        elif not is_origin_allowed(origin, host, allowed=self._origins):
            await _refuse_origin(scope, send, origin)
        else:
            await self._app(scope, receive, send)


async def _refuse_host(scope: Scope, send: Send, host: str) -> None:
    if is_navigation(scope):
        await send_host_page(scope, send, host, program="server", variable=env_name("allowed_hosts"))
        return
    error = Forbidden(host_refusal(host, program="server"))
    await send_reply(scope, send, render_error_for(scope["path"], error))


async def _refuse_origin(scope: Scope, send: Send, origin: str | None) -> None:
    error = Forbidden(
        f"Pages of {origin!r} may not use this server. To allow them, start it with --cors-allow-origins {origin}."
    )
    await send_reply(scope, send, render_error_for(scope["path"], error))
