"""
The gateway as an ASGI application: SageMaker's runtime API and OpenAI's API on the endpoints of a store.

It forwards requests and never starts workers. Callers are authenticated in front of it.
"""

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter

from headrace.core.errors import HeadraceError, Unavailable
from headrace.core.telemetry import get_logger
from headrace.core.tracing import bind_to_log, trace_of
from headrace.gateway import openai, request, streams
from headrace.gateway.async_invocations import MAX_INLINE_BYTES, AsyncInvocations, pending_of
from headrace.gateway.async_metrics import AsyncPublisher
from headrace.gateway.config import GatewayConfig
from headrace.gateway.errors import ErrorTexts
from headrace.gateway.forwarding import Forwarder
from headrace.gateway.invoke import invoke
from headrace.gateway.metrics import GatewayMetrics, InvocationRecord, labels_of
from headrace.gateway.objects import ObjectStore
from headrace.gateway.openai import OpenAiPath
from headrace.gateway.openai_models import is_models_path, models_page
from headrace.gateway.request import Api, Invocation
from headrace.gateway.routing import Draw
from headrace.gateway.service import InvocationService
from headrace.gateway.streams import stream
from headrace.gateway.table import RouteTable
from headrace.gateway.traffic_history import TrafficHistory
from headrace.http.asgi import Receive, Scope, Send
from headrace.http.body import BodyTooLarge, BodyTooSlow, ClientGone
from headrace.http.body_budget import BodyBudget, BudgetSpent
from headrace.http.client import HttpClient
from headrace.http.errors import CLIENT_GONE_STATUS, errors_answered
from headrace.http.exchange import Exchange
from headrace.state.routes import Route
from headrace.state.signals import QuarantineListener, Wake
from headrace.state.store import Store
from headrace.wire.aws import calls
from headrace.wire.aws.errors import AwsError
from headrace.wire.unknown_routes import MODELS, OPENAI_METHODS

MODEL_FAILED_STATUS = 424
STOPPING = "The platform is stopping. Try your request again."
BODY_TIMEOUT_S = 300.0

_RETRYABLE = frozenset({"ModelNotReadyException", "ServiceUnavailable", "ThrottlingException"})
"""Codes of AWS whose answers say when to try again."""

Publish = Callable[[InvocationRecord, Route], None]
"""Called with each finished request; it is quick and raises nothing."""


class Gateway:
    """The application. `start` it before the first request, `close` it after the last."""

    def __init__(
        self,
        store: Store,
        config: GatewayConfig,
        *,
        objects: ObjectStore | None = None,
        wake: Wake | None = None,
        publish: Publish | None = None,
        async_publisher: AsyncPublisher | None = None,
        draw: Draw = random.random,
    ) -> None:
        """
        Make the gateway.

        Args:
            store: whose routes are served.
            config: account, region and limits.
            objects: for asynchronous invocations; without it there are none.
            wake: called with what held requests wait for. None: requests without a replica fail at once.
            publish: called with each finished request to an existing endpoint.
            async_publisher: called with asynchronous invocations.
            draw: random numbers for weights and shares.
        """
        self._publish = publish
        self.metrics = GatewayMetrics()
        self.history = TrafficHistory()
        """Traffic of the last hour, for the console."""
        self._table = RouteTable(store)
        self._upstream = HttpClient()
        texts = ErrorTexts(config)
        self._service = InvocationService(
            config=config,
            forwarder=Forwarder(self._table, self._upstream, texts, config, draw=draw, wake=wake),
            texts=texts,
            metrics=self.metrics,
            budget=BodyBudget(config.max_buffered_bytes),
        )
        self.metrics.num_held = lambda: self._service.forwarder.wait_queue.num_held
        self._async: AsyncInvocations | None = None
        if objects is not None and config.async_folder is not None:
            self._async = AsyncInvocations(
                self._service,
                self._table,
                objects,
                config.async_folder,
                log=log_invocation,
                publisher=async_publisher,
            )
        self._table.on_change(self._forget_gone)

    @property
    def loads(self) -> Mapping[str, int]:
        """Worker → requests in flight."""
        return self._service.forwarder.loads

    @property
    def routes(self) -> Mapping[str, Route]:
        """Endpoint → route, as read last."""
        return self._table.routes

    @property
    def held(self) -> Mapping[str, int]:
        """Endpoint → requests held for a replica."""
        return self._service.forwarder.wait_queue.num_by_endpoint()

    def on_quarantine(self, listener: QuarantineListener) -> None:
        """Call `listener` when a worker stops taking connections, so that the reconciler looks at it now."""
        self._service.forwarder.on_quarantine = listener

    def publish_backlogs(self) -> None:
        """Publish the backlogs of asynchronous invocations; called every ten seconds."""
        if self._async is not None:
            self._async.publish_backlogs()

    async def start(self) -> None:
        """Read the routes and resume asynchronous invocations."""
        await self._table.start()
        if self._async is not None:
            await self._async.start()

    async def close(self) -> None:
        """Close the connections to workers."""
        if self._async is not None:
            await self._async.close()
        await self._table.close()
        await self._upstream.close()

    @staticmethod
    def owns(path: str) -> bool:
        """Return whether a path belongs to one of the gateway's APIs."""
        return request.match(path) is not None or openai.match(path) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = Exchange(scope, receive, send)
        trace = trace_of(scope)
        bind_to_log(trace)
        record = InvocationRecord(
            request_id=trace.request_id,
            api="",
            endpoint="",
            inference_id=trace.inference_id,
            started_s=perf_counter(),
        )
        self.metrics.in_flight += 1
        try:
            await self._route(scope, exchange, record)
        except ClientGone:
            record.is_gone = True
        finally:
            self._finished(exchange, record)
            self.metrics.in_flight -= 1

    async def _route(self, scope: Scope, exchange: Exchange, record: InvocationRecord) -> None:
        path = scope["path"]
        runtime = request.match(path)
        if runtime is not None:
            await self._runtime(scope, *runtime, exchange, record)
            return
        record.api = "OpenAI"
        await self._openai(scope, openai.match(path), exchange, record)

    async def _runtime(
        self, scope: Scope, endpoint: str, api: Api, exchange: Exchange, record: InvocationRecord
    ) -> None:
        record.api, record.endpoint = api, endpoint

        async def answer_error(error: HeadraceError) -> None:
            await _answer_error(_aws_error(error), exchange, record)

        async with errors_answered(answer_error, request_id=record.request_id, program="platform", stopping=STOPPING):
            _check_method(scope["method"])
            invocation = request.read(endpoint, api, scope["headers"], trace_of(scope))
            record.attempt = invocation.attempt
            await self._with_body(
                exchange,
                lambda body: self._answer(invocation, body, exchange, record),
                is_async=api == "InvokeEndpointAsync",
            )

    async def _answer(self, invocation: Invocation, body: bytes, exchange: Exchange, record: InvocationRecord) -> None:
        if invocation.api == "InvokeEndpoint":
            await invoke(self._service, invocation, body, exchange, record)
        elif invocation.api == "InvokeEndpointWithResponseStream":
            await stream(self._service, invocation, body, exchange, record)
        else:
            await self._accept(invocation, body, exchange, record)

    async def _accept(self, invocation: Invocation, body: bytes, exchange: Exchange, record: InvocationRecord) -> None:
        if self._async is None:
            pending_of(await self._service.forwarder.route(invocation.endpoint), invocation, body, now_s=0)
            raise AwsError("ServiceUnavailable", "Asynchronous invocations need an object storage; none is configured.")
        await self._async.accept(invocation, body, exchange, record)

    async def _openai(
        self, scope: Scope, asked: OpenAiPath | None, exchange: Exchange, record: InvocationRecord
    ) -> None:
        method, path = scope["method"], scope["path"]

        async def answer_error(error: HeadraceError) -> None:
            known = openai.to_openai_error(error) if isinstance(error, AwsError) else error
            await openai.fail(known, exchange, record, path=path)

        async with errors_answered(answer_error, request_id=record.request_id, program="platform", stopping=STOPPING):
            if asked is None or (asked.endpoint is None and (method != "POST" or is_models_path(path))):
                await self._models(method, path, exchange, record)
                return
            await self._with_body(
                exchange, lambda body: openai.answer_openai(self._service, asked, scope, body, exchange, record)
            )

    async def _models(self, method: str, path: str, exchange: Exchange, record: InvocationRecord) -> None:
        """List the models, which no worker is asked for."""
        if not is_models_path(path) or method not in OPENAI_METHODS[MODELS]:
            raise openai.not_served(method, path)
        body = models_page(self._table.routes, path, can_wake=self._service.forwarder.wait_queue.can_hold)
        record.status = 200
        await exchange.respond(200, [("content-type", "application/json"), *record.id_headers()], body)

    async def _with_body(
        self, exchange: Exchange, handle: Callable[[bytes], Awaitable[None]], *, is_async: bool = False
    ) -> None:
        """Read the body, then handle the request unless the client disconnects."""
        texts, config = self._service.texts, self._service.config
        if self.metrics.in_flight > config.max_in_flight:
            raise texts.overloaded(f"{config.max_in_flight} requests")
        max_bytes = min(config.max_body_bytes, MAX_INLINE_BYTES) if is_async else config.max_body_bytes
        try:
            with self._service.budget.share() as share:
                body = await exchange.read_body(max_bytes=max_bytes, timeout_s=BODY_TIMEOUT_S, share=share)
                async with exchange.cancelled_on_disconnect():
                    await handle(body)
        except BodyTooLarge:
            raise texts.body_too_large(max_bytes) from None
        except BudgetSpent:
            raise texts.overloaded(f"{config.max_buffered_bytes} bytes of requests") from None
        except BodyTooSlow:
            raise AwsError("ValidationError", "The body of the request did not arrive in time.") from None

    def _forget_gone(self, routes: Mapping[str, Route]) -> None:
        self.metrics.retain({labels for route in routes.values() for labels in labels_of(route)})

    def _finished(self, exchange: Exchange, record: InvocationRecord) -> None:
        record.ended_s = perf_counter()
        record.num_bytes = exchange.num_bytes
        record.status = record.status or CLIENT_GONE_STATUS
        self.metrics.count(record)
        route = self._table.routes.get(record.endpoint)
        if route is not None:
            first_byte_s = None if record.first_s is None else record.first_s - record.started_s
            is_broken = record.status == 200 and record.error is not None
            status = MODEL_FAILED_STATUS if is_broken else record.status
            self.history.record(record.endpoint, record.variant, status, first_byte_s, record.total_s, time.time())
            if self._publish is not None:
                self._publish(record, route)
        log_invocation(record)


def _check_method(method: str) -> None:
    if method != "POST":
        raise AwsError("UnknownOperationException", f"{method} is not allowed here.", status=405)


def _aws_error(error: HeadraceError) -> AwsError:
    """Return an error as the runtime API words it."""
    if isinstance(error, AwsError):
        return error
    if isinstance(error, Unavailable):
        return AwsError("ServiceUnavailable", error.message)
    return AwsError("InternalFailure", f"{error.message} Try your request again.")


async def _answer_error(error: AwsError, exchange: Exchange, record: InvocationRecord) -> None:
    """Answer with an error: by its status if nothing was sent yet, else in the stream."""
    record.error = error.code
    if exchange.is_started:
        await streams.fail_stream(exchange, error.message)
        return
    record.status = error.http_status
    response = calls.render_error("rest-json", error, record.request_id)
    headers = [*response.headers, ("x-request-id", record.request_id)]
    if record.variant:
        headers.append(("x-amzn-invoked-production-variant", record.variant))
    if error.code in _RETRYABLE:
        headers.append(openai.RETRY_AFTER)
    await exchange.respond(response.status, headers, response.body)


def log_invocation(record: InvocationRecord) -> None:
    """Log one line per request: 5xx as errors, failures of the model and of the caller as warnings."""

    def ms(until_s: float | None) -> float | None:
        return None if until_s is None else round((until_s - record.started_s) * 1e3, 1)

    facts: dict[str, object] = {
        "request_id": record.request_id,
        "api": record.api,
        "endpoint": record.endpoint,
        "variant": record.variant,
        "worker": record.worker,
        "status": record.status,
        "asked_ms": ms(record.asked_s),
        "ttft_ms": ms(record.first_s),
        "total_ms": ms(record.ended_s),
        "parts": record.num_parts,
        "bytes": record.num_bytes,
    }
    optional = {
        "error": record.error,
        "model_status": record.model_status if record.model_status != record.status else 0,
        "tries": record.num_tries if record.num_tries > 1 else 0,
        "component": record.component,
        "held_ms": round(record.held_s * 1e3, 1),
        "inference_id": record.inference_id,
        "sdk_attempt": record.attempt,
        "disconnected": record.is_gone,
    }
    facts |= {name: value for name, value in optional.items() if value}
    logger = get_logger()
    level = logger.error if record.status >= 500 else logger.warning if record.error else logger.info
    level("invocation.finished", **facts)
