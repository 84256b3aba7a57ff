"""The span of an HTTP request: started at its head, kept in its scope, ended after its response."""

from headrace.core.tracing import NoSpan, Span, Tracer, replace_trace, trace_of
from headrace.serving.http.asgi import ASGIApp, Message, Receive, Scope, Send
from headrace.serving.http.errors import CLIENT_GONE_STATUS

_SCOPE_KEY = "headrace.span"
_UNTRACED_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Probes, scrapes, pages and preflight requests have no spans."""

DISCONNECTED = "client_disconnected"
"""The error of a span whose client disconnected before the end of the response."""


def begin_span(scope: Scope, tracer: Tracer) -> Span:
    """Start the span of a request; `trace_of` then returns the ids that make it the parent of later spans."""
    trace = trace_of(scope)
    if scope["method"] in _UNTRACED_METHODS:
        return NoSpan(trace)
    span = tracer.start(scope["method"], trace)
    replace_trace(scope, span.trace)
    scope[_SCOPE_KEY] = span
    return span


def span_of(scope: Scope) -> Span:
    """Return the span of a request; a no-op span if none was started."""
    span: Span | None = scope.get(_SCOPE_KEY)
    return NoSpan(trace_of(scope)) if span is None else span


def describe_response(span: Span, *, method: str, route: str, status: int) -> None:
    """Name the span by its route, and record how the request was answered; an empty route is an unknown one."""
    span.rename(f"{method} {route}" if route else method)
    span.describe(
        {"http.request.method": method, "http.route": route or None, "http.response.status_code": status or None}
    )
    if status >= 500:
        span.fail(str(status))


async def run_in_span(span: Span, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    status = 0

    async def watch(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    try:
        await app(scope, receive, watch)
    except BaseException as error:
        span.fail(type(error).__name__)
        raise
    finally:
        # The path with its parameters by name; empty if no route matched, as clients choose such paths.
        route = f"{scope['path']}/" if "endpoint" in scope else ""
        for name, value in scope.get("path_params", {}).items():
            before, found, after = route.rpartition(f"/{value}/")
            route = f"{before}/{{{name}}}/{after}" if found else route
        describe_response(
            span, method=scope["method"], route=route.removesuffix("/"), status=status or CLIENT_GONE_STATUS
        )
        span.end()
