"""
The gateway as an ASGI application: SageMaker's runtime API and OpenAI's API on the endpoints of a store.

It forwards requests and never starts workers. Callers are authenticated in front of it.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter

from headrace.core.errors import HeadraceError, Unavailable
from headrace.core.tracing import NO_TRACER, Tracer, bind_to_log, trace_of
from headrace.platform.gateway import openai, request
from headrace.platform.gateway.async_files import MAX_INLINE_BYTES, AsyncEnd, PendingStore, pending_of
from headrace.platform.gateway.async_invocations import AsyncInvocations
from headrace.platform.gateway.async_queue import AsyncPublisher
from headrace.platform.gateway.capture import DataCapture
from headrace.platform.gateway.errors import ErrorTexts, GatewayConfig
from headrace.platform.gateway.forwarding import Forwarder
from headrace.platform.gateway.key_limits import KeyLimiter, limited_caller
from headrace.platform.gateway.key_usage import KeyUsages
from headrace.platform.gateway.metrics import Caller, GatewayMetrics, InvocationRecord, labels_of
from headrace.platform.gateway.objects import S3Objects
from headrace.platform.gateway.openai import OpenAiPath
from headrace.platform.gateway.openai_models import (
    FactsOfWorkers,
    ListedModel,
    find_models,
    is_models_path,
    render_models,
)
from headrace.platform.gateway.request import Api
from headrace.platform.gateway.routing import Draw, RoutingQuery, all_replicas
from headrace.platform.gateway.service import InvocationService, fail_stream, invoke, stream
from headrace.platform.gateway.shadows import Shadows
from headrace.platform.gateway.spans import end_span, log_invocation
from headrace.platform.gateway.stored_responses import StoredResponses
from headrace.platform.gateway.table import RouteTable
from headrace.platform.gateway.traffic_history import TrafficHistory
from headrace.platform.state.routes import QuarantineListener, Route, Wake
from headrace.platform.state.store import Store
from headrace.serving.http.asgi import Receive, Scope, Send, error_path, header
from headrace.serving.http.body import BodyBudget, BodyTooLarge, BodyTooSlow, BudgetSpent, ClientGone
from headrace.serving.http.client import HttpClient
from headrace.serving.http.errors import CLIENT_GONE_STATUS, errors_answered
from headrace.serving.http.exchange import Exchange
from headrace.serving.http.spans import begin_span
from headrace.serving.wire.aws import calls
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.dialect import retry_headers
from headrace.serving.wire.key_limits import NO_LIMITS
from headrace.serving.wire.openai.stored_responses import ResponseMemory
from headrace.serving.wire.unknown_routes import COUNT_TOKENS, MESSAGES, MODELS, OPENAI_METHODS, refuse_websocket

MODEL_FAILED_STATUS = 424
STOPPING = "The platform is stopping. Try your request again."
BODY_TIMEOUT_S = 300.0

_RETRYABLE = frozenset({"ModelNotReadyException", "ServiceUnavailable", "ThrottlingException"})
"""AWS error codes whose responses have a Retry-After header."""

Publish = Callable[[InvocationRecord, Route], None]
"""Called with each finished request; must return quickly and must not raise."""


class Gateway:
    """The application. `start` it before the first request, `close` it after the last."""

    def __init__(  # noqa: PLR0913 -- the parts that it works with
        self,
        store: Store,
        config: GatewayConfig,
        *,
        objects: S3Objects | None = None,
        pending: PendingStore | None = None,
        wake: Wake | None = None,
        publish: Publish | None = None,
        async_publisher: AsyncPublisher | None = None,
        on_async_ended: Callable[[AsyncEnd], None] = lambda _: None,
        draw: Draw = random.random,
        usages: KeyUsages | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """
        Create the gateway for the routes of a store.

        Without `objects` and `pending` asynchronous invocations are refused; without `wake`, which gets the target of
        held requests, requests without a replica fail at once. `publish` gets finished requests to existing endpoints.
        """
        self._tracer = tracer
        self._publish = publish
        self.metrics = GatewayMetrics()
        self.history = TrafficHistory()
        """Traffic of the last hour, for the console."""
        self._table = RouteTable(store)
        self._upstream = HttpClient()
        self._facts = FactsOfWorkers(self._upstream)
        texts = ErrorTexts(config)
        self.budget = BodyBudget(config.max_buffered_bytes)
        """Budget for request bodies in memory, shared with the other applications of a platform."""
        responses = None
        if config.stored_responses_bytes:
            memory = ResponseMemory(max_bytes=config.stored_responses_bytes, max_age_s=config.stored_responses_age_s)
            self.metrics.stored_responses = lambda: (len(memory), memory.num_bytes)
            responses = StoredResponses(
                memory,
                self.budget,
                max_body_bytes=config.max_body_bytes,
                max_event_bytes=config.max_response_bytes,
            )
        self._service = InvocationService(
            config=config,
            forwarder=Forwarder(self._table, self._upstream, texts, config, draw=draw, wake=wake),
            texts=texts,
            metrics=self.metrics,
            budget=self.budget,
            captures=None if objects is None else DataCapture(objects, self.metrics, draw=draw),
            responses=responses,
            limiter=KeyLimiter(config=config, usages=KeyUsages() if usages is None else usages),
        )
        self._service.shadows = Shadows(
            invoke=self._service.invoke, texts=texts, metrics=self.metrics, draw=draw, count=self._count_copy
        )
        self._capturing: asyncio.Task[None] | None = None
        self.metrics.num_held = lambda: self._service.forwarder.wait_queue.num_held
        self._async: AsyncInvocations | None = None
        if objects is not None and pending is not None:
            self._async = AsyncInvocations(
                self._service,
                self._table,
                objects,
                pending,
                log=log_invocation,
                publisher=async_publisher,
                on_ended=on_async_ended,
                tracer=tracer,
            )
        self._others_held: Mapping[str, int] = {}
        self._table.on_change(self._forget_gone)

    @property
    def responses(self) -> StoredResponses | None:
        """The stored responses of this process; None: it stores none."""
        return self._service.responses

    @property
    def key_usages(self) -> KeyUsages:
        return self._service.limiter.usages

    @property
    def loads(self) -> Mapping[str, int]:
        """In-flight requests by worker, including those of other gateways."""
        return self._service.forwarder.loads

    @property
    def invocations(self) -> InvocationService:
        """For callers inside the platform: the path of a request, without its HTTP."""
        return self._service

    @property
    def routes(self) -> Mapping[str, Route]:
        """The routes of endpoints, without those to the workers of jobs."""
        return {name: route for name, route in self._table.routes.items() if not route.is_internal}

    @property
    def held(self) -> Mapping[str, int]:
        """Held requests by endpoint, including those of other gateways."""
        return Counter(self.own_held()) + Counter(self._others_held)

    def own_loads(self) -> dict[str, int]:
        return self._service.forwarder.loads.own()

    def own_held(self) -> dict[str, int]:
        return self._service.forwarder.wait_queue.num_by_endpoint()

    def set_others(self, loads: Mapping[str, int], held: Mapping[str, int]) -> None:
        """Set the in-flight and held requests of the other gateways on the same workers."""
        self._service.forwarder.loads.set_others(loads)
        self._others_held = held

    def on_quarantine(self, listener: QuarantineListener) -> None:
        """Call `listener` when a worker stops accepting connections, so that the reconciler checks it at once."""
        self._service.forwarder.on_quarantine = listener

    def publish_backlogs(self) -> None:
        """Publish the backlogs of asynchronous invocations; called every ten seconds."""
        if self._async is not None:
            self._async.publish_backlogs()

    async def start(self) -> None:
        await self._table.start()
        if self._service.captures is not None:
            self._capturing = asyncio.create_task(self._service.captures.run())

    async def run_async(self, has_lease: Callable[[], bool] = lambda: True) -> None:
        """Run the asynchronous invocations of all gateways on one store until cancelled; call it on one of them."""
        if self._async is None:
            await asyncio.Event().wait()
        else:
            await self._async.run(has_lease)

    async def look_for_async(self) -> None:
        """Queue the asynchronous invocations that other gateways have accepted, if this one runs them."""
        if self._async is not None:
            await self._async.look()

    def on_accepted_for_others(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each asynchronous invocation that was accepted here and runs elsewhere."""
        if self._async is not None:
            self._async.on_accepted_for_others = listener

    async def close(self) -> None:
        if self._service.shadows is not None:
            await self._service.shadows.close()
        if self._capturing is not None:
            self._capturing.cancel()
            await asyncio.wait([self._capturing])
        await self._table.close()
        await self._facts.close()
        await self._upstream.close()

    @staticmethod
    def owns(path: str) -> bool:
        return request.match(path) is not None or openai.match(path) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        span = begin_span(scope, self._tracer)
        trace = span.trace
        bind_to_log(trace)
        record = InvocationRecord(
            request_id=trace.request_id,
            api="",
            endpoint="",
            inference_id=trace.inference_id,
            started_s=perf_counter(),
            caller=limited_caller(scope),
        )
        self.metrics.in_flight += 1
        try:
            runtime = request.match(scope["path"])
            if runtime is not None:
                await self._runtime(scope, *runtime, exchange, record)
            else:
                await self._openai(scope, openai.match_unsigned(scope["path"]), exchange, record)
        except ClientGone:
            record.is_gone = True
        finally:
            record.ended_s = perf_counter()
            record.num_bytes = exchange.num_bytes
            record.status = record.status or CLIENT_GONE_STATUS
            if record.generates:
                self._count(record)
            log_invocation(record)
            end_span(span, record, method=scope["method"], path=scope["path"])
            self.metrics.in_flight -= 1

    async def _runtime(
        self, scope: Scope, endpoint: str, api: Api, exchange: Exchange, record: InvocationRecord
    ) -> None:
        record.api, record.endpoint, record.action = api, endpoint, f"sagemaker:{api}"

        async def answer_error(error: HeadraceError) -> None:
            code = "ServiceUnavailable" if isinstance(error, Unavailable) else "InternalFailure"
            hint = "" if isinstance(error, Unavailable) else " Try your request again."
            known = error if isinstance(error, AwsError) else AwsError(code, f"{error.message}{hint}")
            await _answer_error(known, exchange, record)

        async with errors_answered(answer_error, request_id=record.request_id, program="platform", stopping=STOPPING):
            if scope["method"] != "POST":
                raise AwsError("UnknownOperationException", f"{scope['method']} is not allowed here.", status=405)
            invocation = request.read(endpoint, api, scope["headers"], trace_of(scope))
            record.attempt = invocation.attempt

            async def handle(body: bytes) -> None:
                if api == "InvokeEndpoint":
                    await invoke(self._service, invocation, body, exchange, record)
                elif api == "InvokeEndpointWithResponseStream":
                    await stream(self._service, invocation, body, exchange, record)
                elif self._async is not None:
                    async with self._service.admitted(invocation, body, record):
                        await self._async.accept(invocation, body, exchange, record)
                else:  # an invalid request gets its own error first
                    pending_of(await self._service.forwarder.route(endpoint), invocation, body, now_s=0)
                    why = "Asynchronous invocations need an object storage; none is configured."
                    raise AwsError("ServiceUnavailable", why)

            await self._with_body(exchange, handle, is_async=api == "InvokeEndpointAsync")

    async def _openai(
        self, scope: Scope, asked: OpenAiPath | None, exchange: Exchange, record: InvocationRecord
    ) -> None:
        method, path, form = scope["method"], scope["path"], error_path(scope, None if asked is None else asked.path)
        record.api, record.is_anthropic = "OpenAI", form in {MESSAGES, COUNT_TOKENS}

        async def answer_error(error: HeadraceError) -> None:
            known = openai.to_openai_error(error, model=record.endpoint) if isinstance(error, AwsError) else error
            await openai.fail(known, exchange, record, path=form)

        async with errors_answered(answer_error, request_id=record.request_id, program="platform", stopping=STOPPING):
            responses = self._service.responses
            if asked is not None and responses is not None and responses.owns(method, asked.path):
                await responses.answer(scope, asked.path, exchange, record)
                return
            if asked is None or (asked.endpoint is None and (method != "POST" or is_models_path(path))):
                if not is_models_path(path) or method not in OPENAI_METHODS[MODELS]:
                    raise refuse_websocket(openai.not_served(method, path), header(scope, b"upgrade"))
                await self._answer_models(path, self._listed(self.routes, path, record.caller), exchange, record)
                return
            record.action = openai.action_of(asked.path)
            record.generates = openai.generates(method, asked.path)
            record.wakes = record.generates or openai.prefers_to_wait(scope)
            if not record.wakes and asked.path == MODELS:
                record.endpoint = asked.endpoint or ""
                self._service.limiter.check(record, RoutingQuery(component=asked.component))
                route = await self._service.forwarder.route(record.endpoint)
                listed = MODELS if asked.component is None else f"{MODELS}/{asked.component}"
                models = self._listed({route.endpoint: route}, listed, record.caller)
                if not any(model.replicas for model in models):  # otherwise their workers list them
                    await self._answer_models(MODELS, models, exchange, record)
                    return
            await self._with_body(
                exchange, lambda body: openai.answer_openai(self._service, asked, scope, body, exchange, record)
            )

    def _listed(self, routes: Mapping[str, Route], path: str, caller: Caller | None) -> Sequence[ListedModel]:
        limits = caller.limits if caller is not None else NO_LIMITS
        return find_models(routes, path, can_wake=self._service.forwarder.wait_queue.can_hold, limits=limits)

    async def _answer_models(
        self, path: str, models: Sequence[ListedModel], exchange: Exchange, record: InvocationRecord
    ) -> None:
        """List models, with the facts that their workers report; each worker is asked only once."""
        await self._facts.learn(replica for model in models for replica in model.replicas)
        body = render_models(path, [(model, self._facts.of(model.replicas)) for model in models])
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
            with self._service.budget.share() as share, exchange.held_in(self._service.budget):
                body = await exchange.read_body(max_bytes=max_bytes, timeout_s=BODY_TIMEOUT_S, share=share)
                async with exchange.cancelled_on_disconnect():
                    await handle(body)
        except BodyTooLarge:
            raise texts.body_too_large(max_bytes) from None
        except BudgetSpent:
            raise texts.overloaded(f"{config.max_buffered_bytes} bytes of bodies") from None
        except BodyTooSlow:
            raise AwsError("ValidationError", "The body of the request did not arrive in time.") from None

    def _forget_gone(self, routes: Mapping[str, Route]) -> None:
        self.metrics.retain({labels for route in routes.values() for labels in labels_of(route)})
        self._facts.retain({replica.worker for replica in all_replicas(routes.values())})

    def _count_copy(self, record: InvocationRecord) -> None:
        """Count a copy for a shadow variant; in the console's charts and in the log it is no request."""
        self.metrics.count(record)
        route = self._table.routes.get(record.endpoint)
        if route is not None and self._publish is not None:
            self._publish(record, route)

    def _count(self, record: InvocationRecord) -> None:
        """Count a request in the metrics that people, scaling policies and the console look at."""
        self.metrics.count(record)
        route = self._table.routes.get(record.endpoint)
        if route is not None:
            first_byte_s = None if record.first_s is None else record.first_s - record.started_s
            is_broken = record.status == 200 and record.error is not None
            status = MODEL_FAILED_STATUS if is_broken else record.status
            self.history.record(record.endpoint, record.variant, status, first_byte_s, record.total_s, time.time())
            if self._publish is not None:
                self._publish(record, route)


async def _answer_error(error: AwsError, exchange: Exchange, record: InvocationRecord) -> None:
    """Answer with an error: as a response if nothing was sent yet, else in the stream."""
    record.error = error.code
    if exchange.is_started:
        await fail_stream(exchange, error.message)
        return
    record.status = error.http_status
    response = calls.render_error("rest-json", error, record.request_id)
    headers = [*response.headers, ("x-request-id", record.request_id)]
    if record.variant:
        headers.append(("x-amzn-invoked-production-variant", record.variant))
    if error.code in _RETRYABLE:
        headers.extend(retry_headers(openai.to_busy(error)))
    headers.extend(record.limit_headers)
    await exchange.respond(response.status, headers, response.body)
