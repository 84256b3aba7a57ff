"""Errors before the first byte as HTTP responses, in the dialect that the path belongs to."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler, Send

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, Internal, MethodNotAllowed
from headrace.core.telemetry import get_logger
from headrace.core.tracing import REQUEST_ID, trace_of
from headrace.server.limits import ClientGone
from headrace.wire.dialect import ErrorReply
from headrace.wire.unknown_routes import render_error_for, unknown_route

CLIENT_GONE_STATUS = 499
"""Status in the log of a request whose client closed the connection. Source: nginx."""


def response_of(reply: ErrorReply) -> Response:
    """The reply as a Starlette response."""
    return Response(reply.body, status_code=reply.status, headers=dict(reply.headers), media_type=reply.content_type)


async def send_error(send: Send, reply: ErrorReply, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send the reply as a whole response."""
    headers = [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", str(len(reply.body)).encode()),
        *((name.encode(), value.encode()) for name, value in reply.headers),
        *extra,
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def _headrace_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return response_of(render_error_for(request.url.path, error))


async def _http_error(request: Request, error: Exception) -> Response:
    """A path or method that is not served."""
    assert isinstance(error, HTTPException)
    path = _path_as_sent(request)
    allow = (error.headers or {}).get("Allow", "")
    reason = unknown_route(request.method, path, allowed=sorted(allow.split(", ")) if allow else ())
    response = response_of(render_error_for(path, reason))
    if isinstance(reason, MethodNotAllowed):
        response.headers["Allow"] = ", ".join(reason.allowed)
    return response


def _path_as_sent(request: Request) -> str:
    """The path with its percent-encoding, which shows what it is on one line."""
    return shortened(request.scope["raw_path"].decode("latin-1"))


async def _bug(request: Request, error: Exception) -> Response:
    get_logger().error("request.crashed", path=_path_as_sent(request), exc_info=error)
    request_id = trace_of(request.scope).request_id
    bug = Internal(f"Something went wrong inside the server (request {request_id}).")
    response = response_of(render_error_for(request.url.path, bug))
    response.headers[REQUEST_ID] = request_id  # outside of all middleware
    return response


async def _client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE_STATUS)


EXCEPTION_HANDLERS: dict[object, ExceptionHandler] = {
    ClientGone: _client_gone,
    HeadraceError: _headrace_error,
    HTTPException: _http_error,
    Exception: _bug,
}
