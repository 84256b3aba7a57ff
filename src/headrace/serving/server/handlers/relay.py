"""The relay of one request to user code, as parts, and of its response to the client.

The parts are the fields of a form, or the body as a whole. Sources: RFC 7578 (multipart/form-data), RFC 2046 section
5.1.1 (boundaries), the URL standard (urlencoded forms).
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from headrace.core.errors import Forbidden, HeadraceError, InvalidRequest
from headrace.core.telemetry import get_logger
from headrace.core.tracing import trace_of
from headrace.serving.handlers.errors import Refused
from headrace.serving.handlers.exchange import (
    BrokenResponse,
    HandlerRequest,
    Pairs,
    PendingResponse,
    RequestPart,
    StreamHead,
    request_part,
)
from headrace.serving.handlers.pool import HandlerPool
from headrace.serving.http.asgi import Receive, Scope, Send, error_path, header, send_reply
from headrace.serving.http.body import ClientGone
from headrace.serving.http.errors import CLIENT_GONE_STATUS, ResponseAborted, errors_answered
from headrace.serving.http.exchange import Exchange
from headrace.serving.http.origins import is_other_site
from headrace.serving.http.spans import DISCONNECTED, span_of
from headrace.serving.server.handlers.service import CodeService
from headrace.serving.wire.unknown_routes import render_error_for
from headrace_handler.client_data import parameter
from headrace_handler.contract import Mode
from headrace_handler.frames import Buffer

MAX_FIELDS = 1000
_MAX_HEAD_BYTES = 16 * 1024
_MAX_HEADERS = 16
"""Headers of a part; clients send three at most."""
_MAX_BOUNDARY_LENGTH = 200
"""RFC 2046 allows 70."""
_INLINE_BYTES = 64 * 1024
"""Longer forms are read on a thread: a form of many fields takes milliseconds for each megabyte."""

Field = tuple[str, str | None, Buffer]
"""Name, content type and content of a field."""


async def body_parts(body: bytes, content_type: str | None, *, reads_forms: bool) -> list[RequestPart]:
    """
    Return the parts of a body, large contents in memory files; if `reads_forms`, the fields of a form one by one.

    Raises `InvalidRequest` if the form is malformed or has too many fields.
    """
    kind, _, _ = (content_type or "").partition(";")
    read = _READERS.get(kind.strip().lower()) if reads_forms else None
    if read is None:
        return [await request_part(body, content_type=content_type)]
    is_small = len(body) <= _INLINE_BYTES
    fields = read(body, content_type or "") if is_small else await asyncio.to_thread(read, body, content_type or "")
    return [await request_part(content, name=name, content_type=kind) for name, kind, content in fields]


def urlencoded_fields(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield names and values of an urlencoded form; raise `InvalidRequest` if it has too many fields."""
    if body.count(b"&") >= MAX_FIELDS:  # before they are decoded, which takes seconds for a million
        raise _too_many_fields()
    for pair in filter(None, body.split(b"&")):
        name, _, value = pair.partition(b"=")
        yield _unquoted(name).decode(errors="replace"), _unquoted(value)


def multipart_fields(body: bytes, boundary: str) -> Iterator[Field]:
    """Yield name, content type and content of each field; raise `InvalidRequest` if the form is malformed."""
    if not boundary:
        raise InvalidRequest("The Content-Type multipart/form-data has no boundary; expected one.")
    if len(boundary) > _MAX_BOUNDARY_LENGTH:
        raise InvalidRequest(
            f"The boundary has {len(boundary)} characters; expected at most {_MAX_BOUNDARY_LENGTH}. Use a shorter one."
        )
    delimiter = b"--" + boundary.encode("latin-1", "replace")
    at = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if not body.startswith(delimiter, at):
        raise InvalidRequest("The form has no part; expected the boundary that its Content-Type names.")
    # From here on `at` is the place of a delimiter: a part follows, or two dashes and the end.
    view, separator = memoryview(body), b"\r\n" + delimiter
    while True:
        start = at + len(delimiter)
        if body.startswith(b"--", start):
            return
        end = body.find(separator, start)
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_HEAD_BYTES)
        if end < 0 or not start < head_end < end + 4:
            raise InvalidRequest("The form ends within a part; expected its closing boundary.")
        name, kind = _field(body[start:head_end])
        yield name, kind, view[min(head_end + 4, end) : end]
        at = end + 2


def _unquoted(text: bytes) -> bytes:
    """Decode a name or a value piece by piece: one call for 6 MB would keep all other threads waiting for 0.4 s."""
    text = text.replace(b"+", b" ")
    pieces, at = [], 0
    while at < len(text):
        end = at + _INLINE_BYTES
        begun = text.find(b"%", end - 2, end)  # an escape that the end would cut
        end = end if begun < 0 else begun
        pieces.append(unquote_to_bytes(text[at:end]))
        at = end
    return b"".join(pieces)


def _too_many_fields() -> InvalidRequest:
    return InvalidRequest(f"The form has too many fields; expected at most {MAX_FIELDS}. Send fewer.")


def _read_multipart(body: bytes, content_type: str) -> list[Field]:
    fields = list(islice(multipart_fields(body, _parameter(content_type, "boundary")), MAX_FIELDS + 1))
    if len(fields) > MAX_FIELDS:
        raise _too_many_fields()
    return fields


def _read_urlencoded(body: bytes, _content_type: str) -> list[Field]:
    return [(name, None, value) for name, value in urlencoded_fields(body)]


_READERS = {"multipart/form-data": _read_multipart, "application/x-www-form-urlencoded": _read_urlencoded}


def _field(head: bytes) -> tuple[str, str | None]:
    """Return the name and the content type of the headers of a part."""
    name, kind = "", None
    lines = head.decode("utf-8", "replace").split("\r\n", _MAX_HEADERS + 1)
    if len(lines) > _MAX_HEADERS + 1:  # the first one ends the boundary
        raise InvalidRequest(f"A part of the form has more than {_MAX_HEADERS} headers. Send fewer.")
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            name = _parameter(value, "name")
        elif key.strip().lower() == "content-type":
            kind = value.strip()
    return name, kind


def _parameter(value: str, name: str) -> str:
    try:
        return parameter(value, name)
    except ValueError as error:
        raise InvalidRequest(f"The form cannot be read: {error}") from error


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
            # The status has been sent: only a broken connection tells the client.
            if exchange.is_started:
                raise ResponseAborted(error.message)
            exchange.is_started = exchange.is_finished = True
            reply = render_error_for(error_path(scope), error)
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
        if is_other_site(scope) and header(scope, b"origin") is None:  # a link; with an origin, it is an allowed page
            raise Forbidden("Pages of other sites may not send requests to a model.")
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
                    # A slow client may take long; until then the body counts with those of requests.
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
