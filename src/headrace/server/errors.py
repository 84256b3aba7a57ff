"""Errors before the first byte as HTTP responses, in the dialect of the path."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, MethodNotAllowed
from headrace.core.telemetry import get_logger
from headrace.core.tracing import REQUEST_ID, trace_of
from headrace.http.body import ClientGone
from headrace.http.errors import CLIENT_GONE_STATUS, ResponseAborted, internal_error
from headrace.wire.dialect import ErrorReply
from headrace.wire.unknown_routes import render_error_for, unknown_route

ExceptionHandler = Callable[[Request, Exception], Awaitable[Response]]
RenderForPath = Callable[[str, HeadraceError], ErrorReply]


def _response(reply: ErrorReply) -> Response:
    return Response(reply.body, status_code=reply.status, headers=dict(reply.headers), media_type=reply.content_type)


async def _headrace_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return _response(render_error_for(request.url.path, error))


class DescribeRoute(Protocol):
    """Returns the error for a route that is not served; `allowed` has the methods of its path."""

    def __call__(self, method: str, path: str, *, allowed: Sequence[str] = ()) -> HeadraceError: ...


def route_error_handler(describe: DescribeRoute, render: RenderForPath = render_error_for) -> ExceptionHandler:
    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = _path_as_sent(request)
        allow = (error.headers or {}).get("Allow", "")
        reason = describe(request.method, path, allowed=sorted(allow.split(", ")) if allow else ())
        response = _response(render(path, reason))
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
    response = _response(render_error_for(request.url.path, internal_error(request_id)))
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
