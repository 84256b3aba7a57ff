"""The endpoint of every route that generates text, whatever its dialect: body → request → chunks → bytes.

When a client disconnects, the backend's relay is cancelled, which aborts the request. Each request is logged and
counted once.

Its span has attributes in OpenTelemetry's terms for generative AI, and never texts of clients or models. Sources:
OpenTelemetry semantic conventions 1.37, "Generative AI spans"; the `gen_ai.latency.*` names are those of vLLM
(`vllm/tracing`).
"""

import asyncio
from dataclasses import replace
from time import perf_counter

from starlette.datastructures import Headers, QueryParams

from headrace.core.generation import ChatPrompt
from headrace.core.telemetry import RequestRecord, get_logger, log_request
from headrace.core.tracing import Span, trace_of
from headrace.serving.http.asgi import TRAILERS, Message, Receive, Scope, Send, add_headers, has_length, header
from headrace.serving.http.background import is_background
from headrace.serving.http.body import ClientGone
from headrace.serving.http.errors import CLIENT_GONE_STATUS, errors_answered
from headrace.serving.http.exchange import Exchange
from headrace.serving.http.spans import DISCONNECTED, span_of
from headrace.serving.server.generation import ChooseDialect, ExtraBytes, Generation
from headrace.serving.server.service import Service
from headrace.serving.server.sessions import in_session
from headrace.serving.wire.adapters import IDENTIFIER_HEADER
from headrace.serving.wire.dialect import Dialect, ParsedRequest
from headrace.serving.wire.usage import USAGE_HEADER, usage_headers


class GenerationRoute:
    def __init__(
        self,
        service: Service,
        *,
        route: str,
        dialect: Dialect,
        choose: ChooseDialect | None = None,
        extra_bytes: ExtraBytes = lambda _: 0,
    ) -> None:
        """
        Create the endpoint of a path (`route`, for the log).

        `dialect` is the dialect of the route; if `choose` is given, which finds it by the body, it is used for errors
        only.
        """
        self._service = service
        self._route = route
        self._dialect = dialect
        self._choose = choose
        self._extra_bytes = extra_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(
            request_id=trace_of(scope).request_id,
            route=self._route,
            dialect=self._dialect.name,
            started_s=perf_counter(),
        )
        span = span_of(scope)
        if header(scope, USAGE_HEADER.encode()) is not None:
            send = telling_usage(send, record)
        exchange = Exchange(scope, receive, send, keep_alive_s=self._service.keep_alive_s)
        formatters = self._service.formatters
        generation = (
            Generation(self._service, self._dialect, exchange, record)
            if formatters is None
            else formatters.generation(self._service, self._dialect, exchange, record, scope)
        )
        try:
            async with errors_answered(generation.answer_error, request_id=record.request_id):
                backend = self._service.backend
                async with self._service.admit(scope, receive) as body:
                    parsed = await generation.parse(
                        body, self._choose, adapter=adapter_of(scope), extra_bytes=self._extra_bytes
                    )
                    parsed = in_background(in_session(parsed, scope), scope)
                    describe_request(span, parsed, model=backend.info.name)
                    async with exchange.cancelled_on_disconnect():
                        await generation.run(backend, parsed)
        except ClientGone:
            record.finish = "disconnected"
        except asyncio.CancelledError:
            record.finish = "aborted"
            raise
        finally:
            record.ended_s = perf_counter()
            record.status = record.status or CLIENT_GONE_STATUS
            self._service.metrics.count(record)
            log_request(get_logger(), record)
            describe_outcome(span, record)


def telling_usage(send: Send, record: RequestRecord) -> Send:
    """Return a `send` that adds the tokens of the request: to the head of a whole response, to the end of a stream."""

    async def sending(message: Message) -> None:
        usage = usage_headers(record.prompt_tokens, record.output_tokens)
        if message["type"] != "http.response.start":
            is_end = not message.get("more_body", False)
            await send({**message, TRAILERS: usage} if is_end else message)
        elif has_length(message):
            await add_headers(send, usage)(message)
        else:
            await send(message)

    return sending


def adapter_of(scope: Scope) -> str | None:
    query = scope.get("query_string", b"")
    named = Headers(scope=scope).get(IDENTIFIER_HEADER)
    return named or (QueryParams(query).get("adapter") if query else None) or None


def in_background(parsed: ParsedRequest, scope: Scope) -> ParsedRequest:
    """Return a parsed body whose requests give way to others, if its request says so."""
    if not is_background(scope):
        return parsed
    return replace(parsed, requests=tuple(replace(request, is_background=True) for request in parsed.requests))


_FAILED = frozenset({"aborted", "error"})


def describe_request(span: Span, parsed: ParsedRequest, *, model: str) -> None:
    """Record the parameters of a request; `model` is the name of the served model."""
    if not span.is_recording or not parsed.requests:
        return
    first = parsed.requests[0]
    operation = "chat" if isinstance(first.prompt, ChatPrompt) else "text_completion"
    if first.pooling is not None:
        operation = "embeddings" if first.pooling.task != "score" else "score"
    span.describe(
        {
            "gen_ai.provider.name": "headrace",
            "gen_ai.operation.name": operation,
            "gen_ai.request.model": first.adapter or model,
            "gen_ai.response.model": model,
        }
    )
    if first.pooling is None:
        sampling = first.sampling
        span.describe(
            {
                "gen_ai.request.choice.count": sampling.n * len(parsed.requests),
                "gen_ai.request.max_tokens": sampling.max_new_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "headrace.stream": parsed.stream,
            }
        )


def describe_outcome(span: Span, record: RequestRecord) -> None:
    if not span.is_recording:
        return
    span.describe({"headrace.dialect": record.dialect, "gen_ai.latency.e2e": record.total_s})
    if record.first_s is not None:
        _describe_tokens(span, record, record.first_s)
    if record.finish == "disconnected":
        span.fail(DISCONNECTED)
    elif record.status >= 500 or record.finish in _FAILED:
        span.fail(record.error or record.finish or "error")
    elif record.error is not None:
        span.describe({"error.type": record.error})


def _describe_tokens(span: Span, record: RequestRecord, first_s: float) -> None:
    span.describe(
        {
            "gen_ai.usage.input_tokens": record.prompt_tokens or None,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.finish_reasons": record.finish_reasons or None,
            "gen_ai.latency.time_to_first_token": record.ttft_s,
            "gen_ai.latency.time_in_model_decode": record.last_s - first_s,
        }
    )
    if record.parsed_s is not None and record.queue_s is not None:
        scheduled_s = record.parsed_s + record.queue_s
        span.describe(
            {
                "gen_ai.latency.time_in_queue": record.queue_s,
                "gen_ai.latency.time_in_model_prefill": max(0.0, first_s - scheduled_s),
            }
        )
        span.add_event("prefill", scheduled_s)
    span.add_event("first_token", first_s)
    span.add_event("last_token", record.last_s)
