"""
The gateway as an ASGI application: SageMaker's runtime API and OpenAI's API on the endpoints of a store.

It forwards and answers; it never starts anything. Who is allowed to call it is decided in front of it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from time import perf_counter

from headrace.core.errors import HeadraceError, Internal, Unavailable
from headrace.core.telemetry import get_logger
from headrace.core.tracing import bind_to_log, trace_of
from headrace.gateway import openai, request, streams
from headrace.gateway.async_invocations import MAX_INLINE_BYTES, AsyncInvocations, pending_of
from headrace.gateway.async_metrics import AsyncPublisher
from headrace.gateway.config import GatewayConfig
from headrace.gateway.downstream import (
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    Downstream,
    Receive,
    Scope,
    Send,
)
from headrace.gateway.errors import ErrorTexts
from headrace.gateway.forwarding import Forwarder
from headrace.gateway.invoke import invoke
from headrace.gateway.metrics import GatewayMetrics, InvocationLabels, InvocationRecord
from headrace.gateway.objects import ObjectStore
from headrace.gateway.openai import OpenAiPath
from headrace.gateway.openai_models import is_models_path, models_page
from headrace.gateway.request import Api, Invocation
from headrace.gateway.routing import Draw
from headrace.gateway.service import InvocationService
from headrace.gateway.streams import stream
from headrace.gateway.table import RouteTable
from headrace.gateway.traffic_history import TrafficHistory
from headrace.http.body_budget import BodyBudget, BudgetSpent
from headrace.http.client import Upstream
from headrace.state.routes import Route
from headrace.state.signals import QuarantineListener, Wake
from headrace.state.store import Store
from headrace.wire.aws import calls
from headrace.wire.aws.errors import AwsError
from headrace.wire.unknown_routes import MODELS, OPENAI_METHODS

CLIENT_GONE_STATUS = 499
"""Status in the log of a request whose client closed the connection. Source: nginx."""

MODEL_FAILED_STATUS = 424
STOPPING = "The platform is stopping. Try your request again."
LAST_WORDS_S = 1.0

_COME_AGAIN = frozenset({"ModelNotReadyException", "ServiceUnavailable", "ThrottlingException"})

_GONE = (ClientGone, TimeoutError)
"""Nobody reads: the client hung up, or does not take the end of what it asked for."""


Publish = Callable[[InvocationRecord, Route], None]
"""Takes a request that has ended; quick, and raises nothing."""


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
            wake: told what requests wait for. None: no request waits, those that nobody can answer fail at once.
            publish: told of each request that has ended at an endpoint that there is.
            async_publisher: told of asynchronous invocations.
            draw: random numbers for weights and shares.
        """
        self._publish = publish
        self.metrics = GatewayMetrics()
        self.history = TrafficHistory()
        """What the console's charts show."""
        self._table = RouteTable(store)
        self._upstream = Upstream()
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
        """Worker → requests that it is answering now."""
        return self._service.forwarder.loads

    @property
    def routes(self) -> Mapping[str, Route]:
        """Endpoint → route, as they were read last."""
        return self._table.routes

    @property
    def held(self) -> Mapping[str, int]:
        """Endpoint → requests that wait for one of its replicas."""
        return self._service.forwarder.wait_queue.num_by_endpoint()

    def on_quarantine(self, listener: QuarantineListener) -> None:
        """Call `listener` when a worker stops taking connections, so that the reconciler looks at it now."""
        self._service.forwarder.on_quarantine = listener

    def publish_backlogs(self) -> None:
        """Tell how many asynchronous invocations wait; to be called every ten seconds."""
        if self._async is not None:
            self._async.publish_backlogs()

    async def start(self) -> None:
        """Read the routes; go on with asynchronous invocations."""
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
        """Whether a path is answered here."""
        return request.match(path) is not None or openai.match(path) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        down = Downstream(scope, receive, send)
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
            await self._route(scope, down, record)
        except _GONE:
            record.is_gone = True
        finally:
            self._finished(down, record)
            self.metrics.in_flight -= 1

    async def _route(self, scope: Scope, down: Downstream, record: InvocationRecord) -> None:
        path = scope["path"]
        runtime = request.match(path)
        if runtime is not None:
            await self._runtime(scope, *runtime, down, record)
            return
        record.api = "OpenAI"
        await self._openai(scope, openai.match(path), down, record)

    async def _runtime(self, scope: Scope, endpoint: str, api: Api, down: Downstream, record: InvocationRecord) -> None:
        record.api, record.endpoint = api, endpoint
        try:
            _check_method(scope["method"])
            invocation = request.read(endpoint, api, scope["headers"], trace_of(scope))
            record.attempt = invocation.attempt
            await self._with_body(
                down, lambda body: self._answer(invocation, body, down, record), is_async=api == "InvokeEndpointAsync"
            )
        except AwsError as error:
            await _tell(error, down, record)
        except asyncio.CancelledError:
            await _last_words(_tell_failure(AwsError("ServiceUnavailable", STOPPING), down, record))
            raise
        except _GONE:
            raise
        except Exception:  # noqa: BLE001 -- the edge: a bug of ours is logged once and told to the client
            get_logger().exception("request.crashed")
            message = f"Something went wrong inside the platform (request {record.request_id}). Try your request again."
            await _tell_failure(AwsError("InternalFailure", message), down, record)

    async def _answer(self, invocation: Invocation, body: bytes, down: Downstream, record: InvocationRecord) -> None:
        if invocation.api == "InvokeEndpoint":
            await invoke(self._service, invocation, body, down, record)
        elif invocation.api == "InvokeEndpointWithResponseStream":
            await stream(self._service, invocation, body, down, record)
        else:
            await self._accept(invocation, body, down, record)

    async def _accept(self, invocation: Invocation, body: bytes, down: Downstream, record: InvocationRecord) -> None:
        if self._async is None:
            pending_of(await self._service.forwarder.route(invocation.endpoint), invocation, body, now_s=0)
            raise AwsError("ServiceUnavailable", "Asynchronous invocations need an object storage; none is configured.")
        await self._async.accept(invocation, body, down, record)

    async def _openai(self, scope: Scope, asked: OpenAiPath | None, down: Downstream, record: InvocationRecord) -> None:
        method, path = scope["method"], scope["path"]
        fail = partial(openai.fail, down=down, record=record, path=path)
        try:
            if asked is None or (asked.endpoint is None and (method != "POST" or is_models_path(path))):
                await self._models(method, path, down, record)
                return
            await self._with_body(
                down, lambda body: openai.answer_openai(self._service, asked, scope, body, down, record)
            )
        except AwsError as error:
            await fail(openai.to_openai_error(error))
        except HeadraceError as error:
            await fail(error)
        except asyncio.CancelledError:
            await _last_words(fail(Unavailable(STOPPING)))
            raise
        except _GONE:
            raise
        except Exception:  # noqa: BLE001 -- the edge: a bug of ours is logged once and told to the client
            get_logger().exception("request.crashed")
            bug = Internal(f"Something went wrong inside the platform (request {record.request_id}).")
            await fail(bug)

    async def _models(self, method: str, path: str, down: Downstream, record: InvocationRecord) -> None:
        """Answer what no worker is asked for."""
        if not is_models_path(path) or method not in OPENAI_METHODS[MODELS]:
            raise openai.not_served(method, path)
        body = models_page(self._table.routes, path, can_wake=self._service.forwarder.wait_queue.can_hold)
        record.status = 200
        await down.whole(200, [("content-type", "application/json"), *record.id_headers()], body)

    async def _with_body(
        self, down: Downstream, answer: Callable[[bytes], Awaitable[None]], *, is_async: bool = False
    ) -> None:
        """Read the body, then answer while somebody listens."""
        texts, config = self._service.texts, self._service.config
        if self.metrics.in_flight > config.max_in_flight:
            raise texts.overloaded(f"{config.max_in_flight} requests")
        max_bytes = min(config.max_body_bytes, MAX_INLINE_BYTES) if is_async else config.max_body_bytes
        try:
            async with down.body(self._service.budget, max_bytes=max_bytes) as body, down.watching():
                await answer(body)
        except BodyTooLarge:
            raise texts.body_too_large(max_bytes) from None
        except BudgetSpent:
            raise texts.overloaded(f"{config.max_buffered_bytes} bytes of requests") from None
        except BodyTooSlow:
            raise AwsError("ValidationError", "The body of the request did not arrive in time.") from None

    def _forget_gone(self, routes: Mapping[str, Route]) -> None:
        self.metrics.retain(
            {
                *(
                    InvocationLabels(one.endpoint, variant.name, "")
                    for one in routes.values()
                    for variant in one.variants
                ),
                *(
                    InvocationLabels(one.endpoint, copies.route.name, copies.name)
                    for one in routes.values()
                    for copies in one.components
                ),
            }
        )

    def _finished(self, down: Downstream, record: InvocationRecord) -> None:
        record.ended_s = perf_counter()
        record.num_bytes = down.num_bytes
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


async def _tell(error: AwsError, down: Downstream, record: InvocationRecord) -> None:
    record.error, record.status = error.code, error.http_status
    response = calls.render_error("rest-json", error, record.request_id)
    headers = [*response.headers, ("x-request-id", record.request_id)]
    if record.variant:
        headers.append(("x-amzn-invoked-production-variant", record.variant))
    if error.code in _COME_AGAIN:
        headers.append(openai.RETRY_AFTER)
    await down.whole(response.status, headers, response.body)


async def _tell_failure(error: AwsError, down: Downstream, record: InvocationRecord) -> None:
    """What is not the model's fault nor the caller's: with a status if that is still possible, else in the stream."""
    if down.is_started:
        record.error = error.code
        await streams.fail_stream(down, error.message)
    else:
        await _tell(error, down, record)


async def _last_words(telling: Awaitable[None]) -> None:
    """Say why, if the client takes it at once: the server that has cancelled us does not wait."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await telling


def log_invocation(record: InvocationRecord) -> None:
    """The one line of a request; a failure of ours is an error, one of the model or the caller a warning."""

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
