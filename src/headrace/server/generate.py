"""
The one path of every generation, whatever route and dialect: body → request → chunks → bytes.

An error before the first byte has the dialect's HTTP status; one after it is the dialect's error event. A client that
hangs up cancels the backend's relay, which aborts the request. Each request is logged and counted once, at its end.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter

from starlette.types import Receive, Scope, Send

from headrace.core.errors import HeadraceError, Internal
from headrace.core.generation import Chunk
from headrace.core.telemetry import RequestRecord, get_logger, log_request
from headrace.core.tracing import trace_of
from headrace.engine.backend import Backend
from headrace.http.exchange import Exchange, Headers, watching
from headrace.http.protocol import piece_writer
from headrace.server.errors import CLIENT_GONE_STATUS
from headrace.server.limits import ClientGone
from headrace.server.service import Service
from headrace.wire.answers import Collector, failure_of
from headrace.wire.dialect import Dialect, ParsedRequest, StreamRenderer, Timings

ChooseDialect = Callable[[bytes], Dialect]
"""Finds the dialect of a body; raises `HeadraceError` if there is none."""


class GenerationRoute:
    """An ASGI endpoint that generates."""

    def __init__(self, service: Service, *, route: str, dialect: Dialect, choose: ChooseDialect | None = None) -> None:
        """
        Make the endpoint.

        Args:
            service: what all routes share.
            route: the path, for the log.
            dialect: the dialect of the route; of its errors only, where `choose` looks at the body.
            choose: finds the dialect by the body.
        """
        self._service = service
        self._route = route
        self._dialect = dialect
        self._choose = choose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        record = RequestRecord(
            request_id=trace_of(scope).request_id,
            route=self._route,
            dialect=self._dialect.name,
            started_s=perf_counter(),
        )
        exchange = Exchange(send, keep_alive_s=self._service.keep_alive_s, write_piece=piece_writer(scope))
        try:
            await self._answer(scope, receive, exchange, record)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not exchange.is_gone or task is None:
                record.finish = "aborted"
                raise
            task.uncancel()
            record.finish = "disconnected"
        finally:
            record.ended_s = perf_counter()
            record.status = record.status or CLIENT_GONE_STATUS
            self._service.metrics.count(record)
            log_request(get_logger(), record)

    async def _answer(self, scope: Scope, receive: Receive, exchange: Exchange, record: RequestRecord) -> None:
        dialect = self._dialect
        answer: _Answer | None = None
        try:
            backend = self._service.backend
            async with self._service.admit(scope, receive) as body:
                if self._choose is not None:
                    dialect = await self._service.understand(body, self._choose)
                record.dialect = dialect.name
                context = self._service.context(record.request_id)
                parsed = await self._service.understand(body, lambda body: dialect.parse(body, context))
                answer = _Answer(self._service, backend, parsed, exchange, record)
                async with watching(receive, exchange):
                    await answer.run()
        except HeadraceError as error:
            await _tell(error, dialect, answer, exchange, record)
        except ClientGone:
            record.finish = "disconnected"
        except Exception:  # noqa: BLE001 -- the edge: a bug of ours is logged once and told to the client
            get_logger().exception("request.crashed")
            bug = Internal(f"Something went wrong inside the server (request {record.request_id}).")
            await _tell(bug, dialect, answer, exchange, record)


class _Answer:
    """What happens between a parsed request and the last byte."""

    def __init__(
        self, service: Service, backend: Backend, parsed: ParsedRequest, exchange: Exchange, record: RequestRecord
    ) -> None:
        self._service = service
        self._backend = backend
        self._parsed = parsed
        self._exchange = exchange
        self._record = record
        self._parsed_s = perf_counter()
        self._texts: list[str] | None = None
        self._is_one_stream = len(parsed.requests) == 1 and parsed.requests[0].sampling.n == 1
        self.renderer: StreamRenderer | None = None
        sampling = parsed.requests[0].sampling
        record.stream = parsed.stream
        record.ignored = parsed.ignored
        record.max_new_tokens = sampling.max_new_tokens
        if service.settings.log_prompts:
            record.prompts = tuple(str(request.prompt) for request in parsed.requests)
            self._texts = []

    async def run(self) -> None:
        """Answer as the request asked to."""
        try:
            await (self._stream() if self._parsed.stream else self._whole())
        finally:
            if self._texts is not None:
                self._record.answer = "".join(self._texts)

    async def _stream(self) -> None:
        exchange, reply = self._exchange, self._parsed.reply
        renderer = self.renderer = reply.stream()
        more = reply.headers(None)
        headers: Headers = (("content-type", reply.content_type), *more)
        if not any(name == "cache-control" for name, _ in more):
            headers = (*headers, ("cache-control", "no-cache"))
        exchange.begin_stream(headers, keep_alive=renderer.keep_alive)
        render, put = renderer.chunk, exchange.put

        def take(number: int, chunk: Chunk) -> bool:
            self._note(chunk)
            failure = failure_of(chunk.finish)
            if failure is not None:
                raise failure
            goes_on = True
            for piece in render(chunk, request=number):
                goes_on = put(piece)
            return goes_on

        await self._relay(take)
        for piece in renderer.end():
            put(piece)
        self._record.status = 200
        await exchange.finish()

    async def _whole(self) -> None:
        collector = Collector(self._parsed.requests)

        def take(number: int, chunk: Chunk) -> bool:
            self._note(chunk)
            collector.add(chunk, request=number)
            return True

        await self._relay(take)
        reply = self._parsed.reply
        body = reply.render(collector.answers())
        self._record.status = 200
        await self._exchange.whole(200, body, (("content-type", reply.content_type), *reply.headers(self._timings())))

    async def _relay(self, take: Callable[[int, Chunk], bool]) -> None:
        """Give `take` the chunks of all requests as they come, with the number of their request."""
        relay, requests, drain = self._backend.relay, self._parsed.requests, self._exchange.drain
        if len(requests) == 1:
            await relay(requests[0], partial(take, 0), drain)
            return
        relays = [asyncio.create_task(relay(one, partial(take, i), drain)) for i, one in enumerate(requests)]
        try:
            await asyncio.gather(*relays)
        finally:
            for task in relays:
                task.cancel()
            await asyncio.gather(*relays, return_exceptions=True)

    def _note(self, chunk: Chunk) -> None:
        """Count a chunk: when it came, and at the end what it sums up to."""
        record = self._record
        now_s = perf_counter()
        if record.first_s is None:
            record.first_s = now_s
        elif self._is_one_stream:
            self._service.metrics.itl_s.observe(now_s - record.last_s)
        record.last_s = now_s
        record.output_tokens += len(chunk.tokens)
        if self._texts is not None:
            self._texts.append(chunk.text)
        finish = chunk.finish
        if finish is not None:
            if chunk.index == 0:
                record.prompt_tokens += finish.prompt_tokens
                record.cached_tokens += finish.cached_tokens
            if self._is_one_stream:
                record.output_tokens = finish.output_tokens
            record.finish = finish.reason.value

    def _timings(self) -> Timings:
        record, now_s = self._record, perf_counter()
        return Timings(
            total_s=now_s - record.started_s,
            validation_s=self._parsed_s - record.started_s,
            queue_s=0.0,
            inference_s=now_s - self._parsed_s,
            prompt_tokens=record.prompt_tokens,
            output_tokens=record.output_tokens,
        )


async def _tell(
    error: HeadraceError, dialect: Dialect, answer: _Answer | None, exchange: Exchange, record: RequestRecord
) -> None:
    """Tell the client what went wrong: with a status if that is still possible, else inside the stream."""
    record.error = error.code
    record.message = error.message
    if not exchange.is_started:
        reply = dialect.render_error(error)
        record.status = reply.status
        headers: Headers = (("content-type", reply.content_type), *reply.headers)
        await exchange.whole(reply.status, reply.body, headers)
        return
    record.status = 200
    record.finish = "error" if record.finish is None else record.finish
    if not exchange.is_finished and answer is not None and answer.renderer is not None:
        for piece in answer.renderer.error(error):
            exchange.put(piece)
        await exchange.finish()
