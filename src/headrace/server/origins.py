"""
Web pages of strangers may not use the server of somebody who visits them.

A browser sends `Origin` with every request that a page's script makes to another site, and with every POST. Without
this check any page could talk to a server on the visitor's own machine, by its address or by a name that the page's
owner points there (DNS rebinding). Programs send no `Origin` and are not affected.
"""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.core.errors import Forbidden
from headrace.server.errors import render_error_for, send_error


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
        if origin is None or self._may_use(origin, _header(scope, b"host") or ""):
            await self._app(scope, receive, send)
            return
        error = Forbidden(
            f"Pages of {origin!r} may not use this server. To allow them, start it with --cors-allow-origins {origin}."
        )
        await send_error(send, render_error_for(scope["path"], error))

    def _may_use(self, origin: str, host: str) -> bool:
        if "*" in self._allowed or origin in self._allowed:
            return True
        try:
            site = urlsplit(origin)
            is_own = site.netloc.lower() == host.lower()
            return is_own and (self._names_are_trusted or _is_local_name(site.hostname or ""))
        except ValueError:
            return False


def _is_local_name(host: str) -> bool:
    """Whether a host in a URL cannot be somebody's domain: `localhost` or an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return str(value.decode("latin-1"))
    return None
