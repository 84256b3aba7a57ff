"""Errors before the first byte as HTTP responses, in the dialect that the path belongs to."""

from dataclasses import replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler, Send

from headrace.core.client_text import shortened
from headrace.core.errors import HeadraceError, Internal, NotFound
from headrace.core.telemetry import get_logger
from headrace.core.tracing import REQUEST_ID, trace_of
from headrace.server.limits import ClientGone
from headrace.wire.dialect import ErrorReply
from headrace.wire.openai.errors import render_error as render_openai_error
from headrace.wire.tgi.errors import render_error as render_tgi_error

CLIENT_GONE_STATUS = 499
"""What the log says when nobody was left to answer. Source: nginx."""

GENERATION_PATHS = "/invocations, /generate, /generate_stream, /v1/chat/completions, /v1/completions"


def render_error_for(path: str, error: HeadraceError) -> ErrorReply:
    """OpenAI's form below `/v1`, TGI's elsewhere; the generation routes have dialects of their own."""
    return render_openai_error(error) if path.startswith("/v1/") else render_tgi_error(error)


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
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        reason = NotFound(f"{request.method} {path} is not served; use {allowed}.")
    else:
        reason = NotFound(f"{request.method} {path} is not served. Generation: {GENERATION_PATHS}.")
    reply = replace(render_error_for(path, reason), status=error.status_code)
    response = response_of(reply)
    response.headers.update(error.headers or {})
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
