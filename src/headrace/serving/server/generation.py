"""
One request for generated text: parsed by its dialect, run by the backend, and written to the client.

An error before the first byte has the dialect's HTTP status; one after it is the dialect's error event.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

from headrace.core.client_text import shortened
from headrace.core.errors import Busy, HeadraceError, InvalidRequest
from headrace.core.generation import Chunk, Finish
from headrace.core.telemetry import RequestRecord
from headrace.inference.engine.backend import Backend, Drain
from headrace.serving.http.exchange import Exchange
from headrace.serving.server.service import Service
from headrace.serving.wire.answers import Answer, Collector, failure_of, num_logprobs
from headrace.serving.wire.dialect import Dialect, ParsedRequest, Reply, StreamRenderer, Timings

ChooseDialect = Callable[[bytes], Dialect]
"""Finds the dialect of a body; raises `HeadraceError` if there is none."""
ExtraBytes = Callable[[bytes], int]
"""Returns the size of what the dialect parses besides a body, such as a stored conversation."""
OnChunk = Callable[[int, Chunk], bool]
"""Called with each chunk and the index of its request; False: the backend waits for `drain` before the next one."""

_MANY_LOGPROBS = 4096
"""Their rendering takes about 5 ms; that of 2,000 tokens with 20 alternatives takes 55 ms."""


class Generation:
    """The life of one request from its body to the end of the response."""

    def __init__(self, service: Service, dialect: Dialect, exchange: Exchange, record: RequestRecord) -> None:
        self._service = service
        self._dialect = dialect
        self._exchange = exchange
        self._record = record
        self._is_one_stream = False
        self._texts: list[str] | None = [] if service.settings.log_prompts else None
        self._renderer: StreamRenderer | None = None

    async def parse(
        self, body: bytes, choose: ChooseDialect | None, *, adapter: str | None, extra_bytes: ExtraBytes = lambda _: 0
    ) -> ParsedRequest:
        """Find the dialect of a body and parse it, or raise `HeadraceError`; `adapter` is named beside the body."""
        service, record = self._service, self._record
        if choose is not None:
            self._dialect = await service.parse_body(body, choose)
        dialect = self._dialect
        record.dialect = dialect.name
        context = replace(service.context(record.request_id), timings=self._timings)
        parsed = await service.parse_body(
            body,
            lambda body: dialect.parse(body, context),
            extra_bytes=extra_bytes(body),
        )
        parsed = with_adapter(parsed, adapter)
        record.stream = parsed.stream
        record.ignored = parsed.ignored
        if parsed.requests:
            record.max_new_tokens = parsed.requests[0].sampling.max_new_tokens
        if self._texts is not None:
            record.prompts = tuple(str(request.prompt) for request in parsed.requests)
        self._is_one_stream = len(parsed.requests) == 1 and parsed.requests[0].sampling.n == 1
        record.parsed_s = perf_counter()
        return parsed

    async def run(self, backend: Backend, parsed: ParsedRequest) -> None:
        try:
            await (self._stream(backend, parsed) if parsed.stream else self._whole(backend, parsed))
        finally:
            if self._texts is not None:
                self._record.answer = "".join(self._texts)

    async def answer_error(self, error: HeadraceError) -> None:
        """Send an error to the client: by its status if nothing was sent yet, else in the stream."""
        exchange, record = self._exchange, self._record
        record.error = error.code
        record.message = error.message
        if not exchange.is_started:
            reply = self._dialect.render_error(error)
            record.status = reply.status
            await exchange.respond(reply.status, (("content-type", reply.content_type), *reply.headers), reply.body)
            return
        record.status = 200
        record.finish = "error" if record.finish is None else record.finish
        if not exchange.is_finished and self._renderer is not None:
            for piece in self._renderer.error(error):
                exchange.put(piece)
            await exchange.finish()

    async def _stream(self, backend: Backend, parsed: ParsedRequest) -> None:
        exchange, reply = self._exchange, parsed.reply
        renderer = self._renderer = reply.stream()
        more = reply.headers(None)
        headers = (("content-type", reply.content_type), *more)
        if not any(name == "cache-control" for name, _ in more):
            headers = (*headers, ("cache-control", "no-cache"))
        exchange.begin_stream(headers, keep_alive=renderer.keep_alive)
        render, put = renderer.chunk, exchange.put

        def on_chunk(number: int, chunk: Chunk) -> bool:
            self._note(chunk, parsed.requests[number].adapter)
            failure = failure_of(chunk.finish)
            if failure is not None:
                raise failure
            goes_on = True
            for piece in render(chunk, request=number):
                goes_on = put(piece)
            return goes_on

        await self._relay(backend, parsed, on_chunk, self._exchange.drain)
        for piece in renderer.end():
            put(piece)
        self._record.status = 200
        await exchange.finish()

    async def _whole(self, backend: Backend, parsed: ParsedRequest) -> None:
        answers, reply = await self._collect(backend, parsed), parsed.reply
        if num_logprobs(answers) < _MANY_LOGPROBS:
            body = reply.render(answers)
        else:  # so that other streams do not wait
            body = await asyncio.to_thread(reply.render, answers)
        await self._respond(reply, reply.content_type, body)

    async def _collect(self, backend: Backend, parsed: ParsedRequest) -> Sequence[Answer]:
        collector = Collector(parsed.requests)

        def on_chunk(number: int, chunk: Chunk) -> bool:
            self._note(chunk, parsed.requests[number].adapter)
            collector.add(chunk, request=number)
            return True

        await self._relay(backend, parsed, on_chunk, self._exchange.drain)
        return collector.answers()

    async def _respond(self, reply: Reply, content_type: str, body: bytes) -> None:
        self._record.status = 200
        headers = (("content-type", content_type), *reply.headers(self._timings()))
        with self._service.budget.holding(len(body)):
            await self._exchange.respond(200, headers, body)

    async def _relay(self, backend: Backend, parsed: ParsedRequest, on_chunk: OnChunk, drain: Drain) -> None:
        """Pass the chunks of all requests to `on_chunk` as they arrive."""
        relay, requests = backend.relay, parsed.requests
        # One request is the common case, and needs no task of its own.
        if len(requests) == 1:
            await relay(requests[0], partial(on_chunk, 0), drain)
            return
        # A batch of embeddings may be longer than the queue: only as many as the engine runs at once are submitted.
        calls = [partial(relay, request, partial(on_chunk, i), drain) for i, request in enumerate(requests)]
        if requests and requests[0].pooling is not None:
            await run_window(calls, window=backend.info.max_num_seqs)
            return
        relays = [
            asyncio.create_task(relay(request, partial(on_chunk, i), drain)) for i, request in enumerate(requests)
        ]
        try:
            await asyncio.gather(*relays)
        finally:
            for task in relays:
                task.cancel()
            await asyncio.gather(*relays, return_exceptions=True)

    def _note(self, chunk: Chunk, adapter: str | None) -> None:
        """Record the times of a chunk, and the totals of the last one."""
        record = self._record
        now_s = perf_counter()
        if record.first_s is None:
            record.first_s = now_s
        elif self._is_one_stream:
            self._service.metrics.itl_s.observe(now_s - record.last_s)
        record.last_s = now_s
        record.output_tokens += len(chunk.tokens)
        if self._texts is not None and chunk.pooled is None:
            self._texts.append(chunk.text)
        if chunk.finish is not None:
            self._note_end(chunk.finish, adapter, is_first=chunk.index == 0)

    def _note_end(self, finish: Finish, adapter: str | None, *, is_first: bool) -> None:
        """Record the totals of a choice; the first one also stands for the prompt."""
        record = self._record
        prompt_tokens = finish.prompt_tokens if is_first else 0
        record.prompt_tokens += prompt_tokens
        if is_first:
            record.cached_tokens += finish.cached_tokens
        if self._is_one_stream:
            record.output_tokens = finish.output_tokens
        record.finish = finish.reason.value
        record.finish_reasons = (*record.finish_reasons, finish.reason.value)
        if finish.queue_s is not None:
            record.queue_s = max(finish.queue_s, record.queue_s or 0.0)
        if adapter is not None:
            self._service.metrics.count_adapter(
                adapter, requests=int(is_first), prompt_tokens=prompt_tokens, output_tokens=finish.output_tokens
            )

    def _timings(self) -> Timings:
        record, now_s = self._record, perf_counter()
        parsed_s, queue_s = record.parsed_s or now_s, record.queue_s or 0.0
        return Timings(
            total_s=now_s - record.started_s,
            validation_s=parsed_s - record.started_s,
            queue_s=queue_s,
            first_chunk_s=(record.first_s or now_s) - record.started_s,
            inference_s=now_s - parsed_s - queue_s,
            prompt_tokens=record.prompt_tokens,
            output_tokens=record.output_tokens,
        )


def with_adapter(parsed: ParsedRequest, adapter: str | None) -> ParsedRequest:
    """Return a parsed body with the adapter that was named beside it; raise `InvalidRequest` if it names another."""
    if adapter is None:
        return parsed
    for request in parsed.requests:
        if request.adapter not in {None, adapter}:
            raise InvalidRequest(
                f"The header or the query names the adapter {shortened(adapter)} and the body "
                f"{shortened(str(request.adapter))}; expected one of them.",
                param="adapters",
            )
    return replace(parsed, requests=tuple(replace(request, adapter=adapter) for request in parsed.requests))


Relay = Callable[[], Awaitable[None]]


async def run_window(relays: Sequence[Relay], *, window: int) -> None:
    """
    Run all relays in order, at most `window` at a time; the first error ends the others and is raised.

    A relay that is refused as `Busy` runs again when another one of this request has ended, so that a large batch does
    not fail halfway because smaller requests took the places in the queue.
    """
    waiting = deque(range(len(relays)))
    running: dict[asyncio.Task[None], int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < window:
                number = waiting.popleft()
                running[asyncio.ensure_future(relays[number]())] = number
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = running.pop(task)
                error = task.exception()
                # Only as many as found a place run from now on; without any other one, `Busy` is the answer.
                if isinstance(error, Busy) and (running or len(done) > 1):
                    waiting.appendleft(number)
                    window = max(1, len(running))
                elif error is not None:
                    raise error
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
