"""Request ids in the log lines and the response head of every request, and the request's span."""

from headrace.core.spans import Tracer
from headrace.core.tracing import ANTHROPIC_REQUEST_ID, REQUEST_ID, bind_to_log
from headrace.http.asgi import ASGIApp, Receive, Scope, Send
from headrace.http.response import add_headers
from headrace.http.spans import begin_span, run_in_span
from headrace.wire.unknown_routes import MESSAGES


class RequestIds:
    """Middleware that binds the ids of a request to its log lines and returns its request id; see `core.tracing`."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        span = begin_span(scope, self._tracer)
        bind_to_log(span.trace)
        names = (REQUEST_ID.lower(), *((ANTHROPIC_REQUEST_ID,) if scope["path"].startswith(MESSAGES) else ()))
        send = add_headers(send, [(name, span.trace.request_id) for name in names])
        if span.is_recording:
            await run_in_span(span, self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)
