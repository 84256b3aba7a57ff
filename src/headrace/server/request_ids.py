"""The ids of each request: in every log line that it causes, and in the head of its answer."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.core.tracing import REQUEST_ID, bind_to_log, trace_of


class RequestIds:
    """Middleware; see `core.tracing`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = trace_of(scope)
        bind_to_log(trace)
        header = (REQUEST_ID.lower().encode(), trace.request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self._app(scope, receive, send_with_id)
