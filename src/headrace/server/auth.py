"""Authentication by the server's API key."""

import hmac

from headrace.core.errors import Unauthorized
from headrace.http.api_page import DOCS_PATH
from headrace.http.asgi import ASGIApp, Receive, Scope, Send, header
from headrace.http.response import send_reply
from headrace.wire.openapi.operations import OPENAPI_PATH
from headrace.wire.unknown_routes import render_error_for

OPEN_PATHS = frozenset({"/ping", "/health", OPENAPI_PATH, DOCS_PATH})
"""Health checks carry no key, and the description of the API has no data."""
PAGE_PATHS = ("/web/", f"{DOCS_PATH}/")
"""The pages ask their users for the key."""


class RequireKey:
    """Middleware that requires the key of every request but health checks and the chat page itself."""

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self._app = app
        self._api_key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http" or self._is_open(scope) or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        error = Unauthorized(
            "The API key is missing or wrong. Send it as `Authorization: Bearer <key>`, or as `x-api-key`."
        )
        await send_reply(scope, send, render_error_for(scope["path"], error), (("www-authenticate", "Bearer"),))

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        return path in OPEN_PATHS or path.startswith(PAGE_PATHS) or (path == "/" and scope["method"] in ("GET", "HEAD"))

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, key = (header(scope, b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer":
            key = header(scope, b"x-api-key") or ""  # Anthropic's clients
        return hmac.compare_digest(key.strip().encode("latin-1"), self._api_key)
