"""The middleware of every model server: ids and spans, the end of connections, origins, CORS and the key.

Errors before the first byte become HTTP responses in the dialect of the path.
"""

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.client_text import shortened
from headrace.core.errors import Forbidden, HeadraceError, MethodNotAllowed, Unauthorized
from headrace.core.telemetry import get_logger
from headrace.core.tracing import ANTHROPIC_REQUEST_ID, NO_TRACER, REQUEST_ID, Tracer, bind_to_log, trace_of
from headrace.serving.http.asgi import (
    ASGIApp,
    Receive,
    Scope,
    Send,
    add_headers,
    close_after,
    error_path,
    header,
    send_reply,
)
from headrace.serving.http.body import ClientGone
from headrace.serving.http.errors import CLIENT_GONE_STATUS, ResponseAborted, internal_error
from headrace.serving.http.origins import (
    ANY,
    allowed_patterns,
    host_refusal,
    is_foreign_load,
    is_host_allowed,
    is_navigation,
    is_origin_allowed,
    send_host_page,
)
from headrace.serving.http.pages import DOCS_PATH
from headrace.serving.http.spans import begin_span, run_in_span
from headrace.serving.server.base_service import BaseService, ServerPhase
from headrace.serving.settings.rules import is_loopback
from headrace.serving.settings.values import env_name
from headrace.serving.wire.dialect import ErrorReply
from headrace.serving.wire.unknown_routes import (
    MESSAGES,
    OPENAPI_PATH,
    refuse_websocket,
    render_error_for,
    unknown_route,
)


def middleware(service: BaseService, *, host: str | None = None) -> list[Middleware]:
    """Return the middleware from outside to inside; `host` is the address of a side application, which has no spans."""
    settings = service.settings
    is_open = is_loopback(host or settings.host) and settings.api_key is None
    is_private = is_open and ANY not in settings.cors_allow_origins
    hosts = allowed_patterns(settings.allowed_hosts, is_open=is_private)
    layers = [
        Middleware(request_ids, tracer=service.tracer if host is None else NO_TRACER),
        Middleware(close_connections, service=service),
        Middleware(check_origin, origins=frozenset(settings.cors_allow_origins), hosts=frozenset(hosts)),
    ]
    if settings.cors_allow_origins:
        # Before the key: a preflight request carries none.
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_allow_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )
    if settings.api_key is not None:
        layers.append(Middleware(require_key, api_key=settings.api_key))
    return layers


def request_ids(app: ASGIApp, *, tracer: Tracer) -> ASGIApp:
    """Bind the ids of a request to its log lines, and return its request id; see `core.tracing`."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        span = begin_span(scope, tracer)
        bind_to_log(span.trace)
        names = (REQUEST_ID.lower(), *((ANTHROPIC_REQUEST_ID,) if scope["path"].startswith(MESSAGES) else ()))
        send = add_headers(send, [(name, span.trace.request_id) for name in names])
        if span.is_recording:
            await run_in_span(span, app, scope, receive, send)
        else:
            await app(scope, receive, send)

    return named


def close_connections(app: ASGIApp, *, service: BaseService) -> ASGIApp:
    """Close each connection after its response while the server drains."""

    async def closing(scope: Scope, receive: Receive, send: Send) -> None:
        is_draining = service.phase is ServerPhase.TERMINATING
        await app(scope, receive, close_after(send) if is_draining else send)

    return closing


def check_origin(app: ASGIApp, *, origins: frozenset[str], hosts: frozenset[str]) -> ASGIApp:
    """
    Serve requests under the server's host names, and pages only if they are its own or allowed.

    Pages of `origins` may use the server (`scheme://host:port` or `*`); `hosts` are patterns.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        origin, host = header(scope, b"origin"), header(scope, b"host") or ""
        # An allowed page may reach the server by any name: its origin cannot be another owner's.
        if origin not in origins and not is_host_allowed(host, hosts):
            if is_navigation(scope):
                await send_host_page(scope, send, host, program="server", variable=env_name("allowed_hosts"))
            else:
                await _refuse(scope, send, host_refusal(host, program="server"))
        elif not is_origin_allowed(origin, host, allowed=origins):
            why = (
                f"Pages of {origin!r} may not use this server. "
                f"To allow them, start it with --cors-allow-origins {origin}."
            )
            await _refuse(scope, send, why)
        elif ANY not in origins and is_foreign_load(scope):
            await _refuse(scope, send, "Pages of other sites may not load this server's answers.")
        else:
            await app(scope, receive, send)

    return checked


async def _refuse(scope: Scope, send: Send, why: str) -> None:
    await send_reply(scope, send, render_error_for(error_path(scope), Forbidden(why)))


OPEN_PATHS = frozenset({"/ping", "/health", OPENAPI_PATH, DOCS_PATH})
"""Health checks carry no key, and the description of the API has no data."""
PAGE_PATHS = ("/web/", f"{DOCS_PATH}/")
"""The pages ask their users for the key."""


def require_key(app: ASGIApp, *, api_key: str) -> ASGIApp:
    """Require the key of every request but health checks and the pages themselves."""

    def is_admitted(scope: Scope) -> bool:
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(PAGE_PATHS) or (path == "/" and scope["method"] in ("GET", "HEAD")):
            return True
        scheme, _, key = (header(scope, b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer":
            key = header(scope, b"x-api-key") or ""  # Anthropic's clients
        return hmac.compare_digest(key.strip().encode("latin-1"), api_key.encode())

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_admitted(scope):
            await app(scope, receive, send)
            return
        error = Unauthorized(
            "The API key is missing or wrong. Send it as `Authorization: Bearer <key>`, or as `x-api-key`."
        )
        await send_reply(scope, send, render_error_for(error_path(scope), error), (("www-authenticate", "Bearer"),))

    return guarded


ExceptionHandler = Callable[[Request, Exception], Awaitable[Response]]
RenderForPath = Callable[[str, HeadraceError], ErrorReply]


def _response(reply: ErrorReply) -> Response:
    return Response(reply.body, status_code=reply.status, headers=dict(reply.headers), media_type=reply.content_type)


async def _headrace_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return _response(render_error_for(error_path(request.scope), error))


class DescribeRoute(Protocol):
    """Returns the error for a route that is not served; `allowed` has the methods of its path."""

    def __call__(self, method: str, path: str, *, allowed: Sequence[str] = ()) -> HeadraceError: ...


def route_error_handler(describe: DescribeRoute, render: RenderForPath = render_error_for) -> ExceptionHandler:
    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = _path_as_sent(request)
        allow = (error.headers or {}).get("Allow", "")
        reason = describe(request.method, path, allowed=sorted(allow.split(", ")) if allow else ())
        reason = refuse_websocket(reason, request.headers.get("upgrade"))
        response = _response(render(error_path(request.scope, path), reason))
        if isinstance(reason, MethodNotAllowed):
            response.headers["Allow"] = ", ".join(reason.allowed)
        return response

    return answer


def _path_as_sent(request: Request) -> str:
    """Return the path with its percent-encoding, which keeps it on one line."""
    return shortened(request.scope["raw_path"].decode("latin-1"))


async def _bug(request: Request, error: Exception) -> Response:
    if not isinstance(error, ResponseAborted):
        get_logger().error("request.crashed", path=_path_as_sent(request), exc_info=error)
    request_id = trace_of(request.scope).request_id
    response = _response(render_error_for(error_path(request.scope), internal_error(request_id)))
    response.headers[REQUEST_ID] = request_id  # the middleware that adds it has been left
    return response


async def _client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE_STATUS)


COMMON_HANDLERS: dict[object, ExceptionHandler] = {
    ClientGone: _client_gone,
    HeadraceError: _headrace_error,
    Exception: _bug,
}
"""Handlers for an application whose unknown routes have errors of their own."""
EXCEPTION_HANDLERS = {**COMMON_HANDLERS, HTTPException: route_error_handler(unknown_route)}
