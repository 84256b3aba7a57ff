"""Request ids in the log lines and the response head of every request."""

from headrace.core.tracing import REQUEST_ID, bind_to_log, trace_of
from headrace.http.asgi import ASGIApp, Receive, Scope, Send
from headrace.http.response import add_headers


class RequestIds:
    """Middleware that binds the ids of a request to its log lines and returns its request id; see `core.tracing`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = trace_of(scope)
        bind_to_log(trace)
        await self._app(scope, receive, add_headers(send, ((REQUEST_ID.lower(), trace.request_id),)))
