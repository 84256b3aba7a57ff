"""The relay of one request to user code, and of its response to the client."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Final
from urllib.parse import parse_qsl

from headrace.core.errors import HeadraceError
from headrace.core.telemetry import get_logger
from headrace.core.tracing import trace_of
from headrace.handlers.errors import Refused
from headrace.handlers.exchange import BrokenResponse, HandlerRequest, Pairs, PendingResponse, StreamHead
from headrace.handlers.pool import HandlerPool
from headrace.http.asgi import Receive, Scope, Send, header
from headrace.http.body import ClientGone
from headrace.http.errors import CLIENT_GONE_STATUS, ResponseAborted, errors_answered
from headrace.http.exchange import Exchange
from headrace.http.response import send_reply
from headrace.http.spans import DISCONNECTED, span_of
from headrace.server.handlers.forms import body_parts
from headrace.server.handlers.service import CodeService
from headrace.wire.unknown_routes import render_error_for
from headrace_handler.contract import Mode

ItemPath = Callable[[Scope], str]
"""Returns the path of an item; see `Item.path`."""

_CONNECTION_HEADERS: Final = frozenset(
    ("connection", "content-length", "date", "keep-alive", "server", "trailer", "transfer-encoding", "upgrade")
)
"""Headers that belong to the connection, not to the code."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class HandlerRoute:
    """The endpoint of a route that user code answers."""

    def __init__(
        self,
        service: CodeService,
        *,
        mode: Mode = "predict",
        item_path: ItemPath = lambda scope: str(scope["path"]),
        pool: HandlerPool | None = None,
    ) -> None:
        """Create the endpoint; `item_path` returns the path that the code sees, `pool` None is the default model's."""
        self._service = service
        self._mode: Mode = mode
        self._item_path = item_path
        self._pool = pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange, outcome, started_s = Exchange(scope, receive, send), _Outcome(), perf_counter()
        request_id = trace_of(scope).request_id

        async def answer_error(error: HeadraceError) -> None:
            if exchange.is_started:
                raise ResponseAborted(error.message)
            exchange.is_started = exchange.is_finished = True
            reply = render_error_for(scope["path"], error)
            outcome.status, outcome.finish = reply.status, "error"
            await send_reply(scope, send, reply)

        try:
            async with (
                errors_answered(answer_error, request_id=request_id),
                self._service.admit(scope, receive) as body,
            ):
                await self._answer(scope, exchange, body, request_id, outcome)
        except ClientGone:
            outcome.finish = "disconnected"
            outcome.status = outcome.status if exchange.is_started else CLIENT_GONE_STATUS
        finally:
            get_logger().info(
                "request.finished",
                route=scope["path"],
                status=outcome.status,
                finish=outcome.finish,
                bytes=exchange.num_bytes,
                duration_ms=round((perf_counter() - started_s) * 1e3, 2),
            )
            if outcome.finish != "complete":
                span_of(scope).fail(DISCONNECTED if outcome.finish == "disconnected" else outcome.finish)

    async def _answer(
        self, scope: Scope, exchange: Exchange, body: bytes, request_id: str, outcome: "_Outcome"
    ) -> None:
        self._service.check_open()
        pool = self._pool or self._service.pool
        reads_forms = self._service.contract != "sagemaker"
        parts = await body_parts(body, header(scope, b"content-type"), reads_forms=reads_forms)
        request = HandlerRequest(
            request_id=request_id,
            mode=self._mode,
            method=scope["method"],
            path=self._item_path(scope),
            headers=_headers_for_code(scope),
            query=parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True),
            parts=parts,
        )
        try:
            response = pool.submit(request)
        except Refused as refused:
            whole = refused.response
            outcome.status = whole.status
            await exchange.respond(whole.status, whole.headers, whole.body)
            outcome.finish = "complete"
            return
        try:
            async with exchange.cancelled_on_disconnect():
                head = await response.head()
                outcome.status = clean_status(head.status)
                if isinstance(head, StreamHead):
                    await _stream(response, head, outcome.status, exchange)
                else:
                    with self._service.budget.holding(len(head.body)):
                        await exchange.respond(outcome.status, clean_headers(head.headers), head.body)
                outcome.finish = "complete"
        finally:
            response.close()


def _headers_for_code(scope: Scope) -> list[tuple[str, str]]:
    """Return the client's headers; in the trace context the request's span takes the place of the caller's."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    trace = trace_of(scope)
    if not trace.has_span:
        return headers
    own = {"traceparent": trace.traceparent, "tracestate": trace.tracestate}
    kept = [(name, value) for name, value in headers if name not in own]
    return [*kept, *((name, value) for name, value in own.items() if value)]


@dataclass(slots=True)
class _Outcome:
    """The end of a request, for its line in the log."""

    status: int = 0
    """The status that the client got; 0: none."""
    finish: str = "error"
    """`complete`, `error` (also a stream that broke off), or `disconnected`: the client left before the end."""


async def _stream(response: PendingResponse, head: StreamHead, status: int, exchange: Exchange) -> None:
    await exchange.start(status, clean_headers(head.headers))
    try:
        while (part := await response.part()) is not None:
            if part and not exchange.put(bytes(part)):
                await exchange.drain()
    except BrokenResponse as error:
        get_logger().error("handler.response_broken", reason=str(error))
        raise ResponseAborted(str(error)) from error
    await exchange.finish()


def clean_status(status: int) -> int:
    """Return a status that HTTP clients accept: user code may set any number."""
    return status if 200 <= status <= 599 else 500


def clean_headers(headers: Pairs) -> Iterable[tuple[str, str]]:
    """Return the headers that user code has set, without those of the connection and without line breaks."""
    return [
        (name, _CONTROL.sub(" ", value).encode("latin-1", "replace").decode("latin-1"))
        for name, value in headers
        if _NAME.fullmatch(name) and name.lower() not in _CONNECTION_HEADERS
    ]
