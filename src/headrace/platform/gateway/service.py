"""The parts that all APIs of the gateway share, the path of one invocation, and SageMaker's two APIs for it."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import perf_counter

from headrace.platform.cluster.model_host.protocol import TIMING_HEADER, parse_timing, reason_of
from headrace.platform.gateway import errors
from headrace.platform.gateway.capture import DataCapture
from headrace.platform.gateway.errors import ErrorTexts, GatewayConfig, NoCapacity
from headrace.platform.gateway.forwarding import Forwarder
from headrace.platform.gateway.key_limits import KeyLimiter, asking_usage, note_usage
from headrace.platform.gateway.metrics import GatewayMetrics, InvocationRecord
from headrace.platform.gateway.request import Invocation
from headrace.platform.gateway.routing import RoutingDecision, RoutingQuery, prefix_of
from headrace.platform.gateway.shadows import Shadows
from headrace.platform.gateway.stored_responses import StoredResponses
from headrace.serving.http.body import BodyBudget, ClientGone
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ClientResponse, Hold, ResponseBroken, ResponseTooLarge, uncounted
from headrace.serving.http.exchange import Exchange
from headrace.serving.wire.aws import eventstream
from headrace.serving.wire.framing import UNBUFFERED_HEADERS
from headrace.serving.wire.json_size import INLINE_BYTES
from headrace.serving.wire.usage import has_usage

NEW_SESSION = "NEW_SESSION"
DEFAULT_LIFETIME_S = 1200.0
"""Lifetime of a session for which the container sends no `Expires`. Source: DJL's `sessions_expiration`."""
MAX_SESSIONS = 100_000
"""Sessions in the table; above this the least recently used one is evicted."""
_MAX_ID_CHARACTERS = 256
"""Longest id that a client can send. Source: botocore sagemaker-runtime, shape SessionIdHeader."""
_OPENED = ("x-amzn-sagemaker-new-session-id", "x-amzn-sagemaker-session-id")
"""Response headers with the id of a new session: vLLM's name, and the one of DJL and the guide."""

_CLOSED = "x-amzn-sagemaker-closed-session-id"


@dataclass(frozen=True, slots=True)
class _Session:
    worker: str
    expires_s: float


class Sessions:
    """
    The workers of stateful sessions. Containers open, name and close sessions; the gateway remembers where they are.

    The table is in memory: after a restart of the platform a session is routed by rendezvous hashing of its id, which
    is correct for endpoints with one replica. Source: SageMaker developer guide, "Stateful sessions".
    """

    def __init__(self, *, max_sessions: int = MAX_SESSIONS) -> None:
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()
        self._max_sessions = max_sessions

    def __len__(self) -> int:
        return len(self._sessions)

    def worker_of(self, endpoint: str, session_id: str, *, now_s: float) -> str | None:
        """Return the worker that has the session; None if it is unknown or has expired."""
        key = (endpoint, session_id)
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.expires_s <= now_s:
            del self._sessions[key]
            return None
        self._sessions.move_to_end(key)
        return session.worker

    def update(
        self, endpoint: str, session_id: str | None, headers: Mapping[str, str], *, worker: str, now_s: float
    ) -> dict[str, str]:
        """Apply the session headers of a worker's response (names in lower case); return those for the client."""
        client_headers = {}
        opened = next((headers[name] for name in _OPENED if name in headers), None)
        if session_id == NEW_SESSION and opened:
            new_id, _, attributes = opened.partition(";")
            expires_s = _expires_s(attributes)
            key = (endpoint, new_id.strip()[:_MAX_ID_CHARACTERS])
            self._sessions[key] = _Session(worker, now_s + DEFAULT_LIFETIME_S if expires_s is None else expires_s)
            self._sessions.move_to_end(key)
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
            client_headers["X-Amzn-SageMaker-New-Session-Id"] = opened
        closed = headers.get(_CLOSED)
        if closed:
            self._sessions.pop((endpoint, closed.strip()), None)
            client_headers["X-Amzn-SageMaker-Closed-Session-Id"] = closed
        return client_headers


def _expires_s(attributes: str) -> float | None:
    """Parse `Expires=2026-01-01T00:00:00Z` to seconds since 1970."""
    name, _, value = attributes.strip().partition("=")
    if name.lower() != "expires":
        return None
    try:
        when = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


FLUSH_S = 30.0
"""Longest time for a client to read the end of a finished stream."""

Heartbeat = Callable[[], Awaitable[None]]
"""Keeps the connection of a held request open; runs until it is cancelled."""


@dataclass(slots=True, kw_only=True)
class InvocationService:
    """Invokes workers: routing, timeouts, sessions and error translation for all APIs."""

    config: GatewayConfig
    forwarder: Forwarder
    texts: ErrorTexts
    metrics: GatewayMetrics
    sessions: Sessions = field(default_factory=Sessions)
    budget: BodyBudget
    captures: DataCapture | None = None
    """None: there is no object storage to capture to."""
    shadows: Shadows | None = None
    """Sends copies of requests to shadow variants; None: nothing is copied."""
    responses: StoredResponses | None = None
    """None: responses of the Responses API are not stored."""
    limiter: KeyLimiter

    def routing_query(self, invocation: Invocation, body: bytes) -> RoutingQuery:
        component = invocation.members.get("InferenceComponentName")
        session_id = invocation.session_id
        worker = affinity = None
        if session_id is not None and session_id != NEW_SESSION:
            worker = self.sessions.worker_of(invocation.endpoint, session_id, now_s=time.time())
            affinity = session_id.encode("latin-1")
        return RoutingQuery(
            target_variant=invocation.members.get("TargetVariant"),
            component=component,
            container=invocation.members.get("TargetContainerHostname"),
            unserved_member=invocation.unserved_member,
            target_model=invocation.members.get("TargetModel"),
            worker=worker,
            affinity=affinity,
            prefix=prefix_of(component or invocation.endpoint, invocation.prefix_id, body),
            longer_prefix=partial(prefix_of, component or invocation.endpoint, invocation.prefix_id, body),
        )

    @asynccontextmanager
    async def invoke(
        self,
        endpoint: str,
        query: RoutingQuery,
        request: ClientRequest,
        record: InvocationRecord,
        *,
        timeout_s: float,
        heartbeat: Heartbeat | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """
        Send a request to a worker; the block gets its response, which is closed when the block ends.

        `timeout_s` limits the request and the block, without the time for which the request is held; `heartbeat` runs
        during that time. `record` receives the measurements.

        Raises:
            AwsError: no replica answers, or the limits of the caller's key do not allow the request.
            TimeoutError: `timeout_s` has passed.
        """
        record.component = query.component or ""
        self.limiter.check(record, query)
        request = asking_usage(request, record)

        def on_decision(decision: RoutingDecision) -> None:
            record.variant, record.worker = decision.variant.name, decision.replica.worker
            record.config, record.is_serverless = decision.fleet.config, decision.variant.max_concurrency is not None
            record.num_tries += 1
            record.asked_s = perf_counter()
            if decision.fleet.containers or record.containers:
                record.set_containers(decision.fleet.containers, target=query.container)
            if record.num_tries == 1:
                self._copy(endpoint, query, request, record, timeout_s=timeout_s)

        async with self.limiter.counted(record, len(request.body)), asyncio.timeout(timeout_s) as timeout:
            try:
                forwarded = await self.forwarder.send(
                    endpoint,
                    query,
                    request,
                    request_id=record.request_id,
                    on_decision=on_decision,
                    while_held=lambda: self._while_held(timeout, timeout_s, record, heartbeat),
                )
            except NoCapacity:
                record.is_without_capacity = True
                raise
            with closing(forwarded), self._noted(endpoint, query, request, forwarded.response, record):
                yield forwarded.response

    @contextmanager
    def _noted(
        self,
        endpoint: str,
        query: RoutingQuery,
        request: ClientRequest,
        response: ClientResponse,
        record: InvocationRecord,
    ) -> Iterator[None]:
        """Note in `record` what the head of a response and its end say, and capture both if the endpoint does."""
        captured = None
        try:
            record.head_s = perf_counter()
            record.model_status = response.status
            if record.containers:
                record.read_containers(response.headers)
            if query.target_model is not None:
                record.target_timing = parse_timing(response.headers.get(TIMING_HEADER, ""))
            if self.captures is not None:
                captured = self.captures.begin(self.forwarder.routes.get(endpoint), record, request, response)
            yield
        finally:
            note_usage(record, response)
            if self.captures is not None and captured is not None:
                self.captures.end(captured)

    def _copy(
        self, endpoint: str, query: RoutingQuery, request: ClientRequest, record: InvocationRecord, *, timeout_s: float
    ) -> None:
        """Copy a request to the shadow variants, if its endpoint has any."""
        route = self.forwarder.routes.get(endpoint)
        if self.shadows is None or route is None or not route.shadows or query.is_copy or not record.generates:
            return
        if self.captures is not None and route.capture is not None:
            self.captures.event_of(record)  # so that a copy is captured with its request
        self.shadows.copy(route, query, request, record, timeout_s=timeout_s)

    @contextmanager
    def _while_held(
        self, timeout: asyncio.Timeout, timeout_s: float, record: InvocationRecord, heartbeat: Heartbeat | None
    ) -> Iterator[None]:
        """Stop the timeout and run the heartbeat while a request is held."""
        loop, since_s = asyncio.get_running_loop(), perf_counter()
        timeout.reschedule(None)
        heartbeat_task = None if heartbeat is None else asyncio.ensure_future(heartbeat())
        try:
            yield
        finally:
            if heartbeat_task is not None:
                heartbeat_task.cancel()
            record.held_s += perf_counter() - since_s
            timeout.reschedule(loop.time() + timeout_s)

    def admitted(
        self, invocation: Invocation, body: bytes, record: InvocationRecord
    ) -> AbstractAsyncContextManager[None]:
        """Check and count a request that runs later, until the block ends. Raises `AwsError`."""
        self.limiter.check(record, self.routing_query(invocation, body))
        return self.limiter.counted(record, len(body))

    async def read(self, response: ClientResponse, record: InvocationRecord, hold: Hold) -> bytes:
        """Read the whole body of a response, counted by `hold`; raise `AwsError` if it broke off or is too long."""
        max_bytes = errors.SERVERLESS_MAX_BYTES if record.is_serverless else self.config.max_response_bytes
        try:
            content = await response.read(max_bytes, hold)
        except (ResponseBroken, ResponseTooLarge) as error:
            raise self.texts.incomplete_response(record.endpoint, response.status, record.container) from error
        record.num_read_bytes = len(content)
        if record.counts_tokens and has_usage(content) and len(content) <= INLINE_BYTES:
            record.usage_part = content
        return content

    async def check_status(self, response: ClientResponse, record: InvocationRecord, hold: Hold = uncounted) -> None:
        """Raise `AwsError` unless the worker answered 2xx."""
        if not 200 <= response.status < 300:
            body = await self.read(response, record, hold)
            reason = reason_of(response.headers)
            raise self.texts.refused(record.endpoint, response.status, body, record.container, reason)

    def response_headers(
        self, invocation: Invocation, record: InvocationRecord, headers: Mapping[str, str]
    ) -> dict[str, str]:
        common = {**dict(record.id_headers()), "x-Amzn-Invoked-Production-Variant": record.variant}
        if "x-amzn-sagemaker-custom-attributes" in headers:
            common["X-Amzn-SageMaker-Custom-Attributes"] = headers["x-amzn-sagemaker-custom-attributes"]
        common |= self.sessions.update(
            invocation.endpoint, invocation.session_id, headers, worker=record.worker, now_s=time.time()
        )
        return common


async def relay(
    response: ClientResponse,
    exchange: Exchange,
    record: InvocationRecord,
    encode: Callable[[bytes], bytes] | None = None,
) -> None:
    """
    Relay the parts of a worker's response to the client, encoded if `encode` is given, and count them.

    `encode` may keep a part for later: it then returns no bytes.
    """
    put, counts_tokens = exchange.put, record.counts_tokens

    def put_part(part: bytes) -> bool:
        if record.first_s is None:
            record.first_s = perf_counter()
        record.num_parts += 1
        if counts_tokens and has_usage(part):
            record.usage_part = part
        encoded = part if encode is None else encode(part)
        return put(encoded) if encoded else True

    await response.relay(put_part, exchange.drain)


async def finish(exchange: Exchange) -> None:
    """End a stream; raise `ClientGone` if the client does not read the end within `FLUSH_S`."""
    try:
        async with asyncio.timeout(FLUSH_S):
            await exchange.finish()
    except TimeoutError:
        raise ClientGone from None


async def invoke(
    service: InvocationService, invocation: Invocation, body: bytes, exchange: Exchange, record: InvocationRecord
) -> None:
    """Answer with the worker's response in one piece, so that every failure has a status (`AwsError`)."""
    query = service.routing_query(invocation, body)
    request = ClientRequest(headers=invocation.worker_headers(), body=body)
    try:
        async with service.invoke(
            invocation.endpoint, query, request, record, timeout_s=service.config.invocation_timeout_s
        ) as response:
            await service.check_status(response, record, exchange.hold)
            content = await service.read(response, record, exchange.hold)
    except TimeoutError:
        raise service.texts.timed_out(invocation.endpoint, record.container) from None
    record.first_s = perf_counter()
    record.num_parts = 1
    record.status = 200
    headers = service.response_headers(invocation, record, response.headers)
    headers["Content-Type"] = response.headers.get("content-type", "application/octet-stream")
    await exchange.respond(200, headers.items(), content)


async def stream(
    service: InvocationService, invocation: Invocation, body: bytes, exchange: Exchange, record: InvocationRecord
) -> None:
    """
    Answer with an event stream, one PayloadPart for each chunk of the worker.

    Before the first byte a failure has a status (`AwsError`); after it, it is an event: `ModelStreamError` if the model
    or its connection failed, `InternalStreamFailure` if the platform did. Source: botocore sagemaker-runtime, shape
    ResponseStream.
    """
    query = service.routing_query(invocation, body)
    request = ClientRequest(headers=invocation.worker_headers(), body=body)
    try:
        async with service.invoke(
            invocation.endpoint, query, request, record, timeout_s=service.config.stream_timeout_s
        ) as response:
            await service.check_status(response, record, exchange.hold)
            record.status = 200
            await exchange.start(200, _headers(service, invocation, record, response))
            await relay(response, exchange, record, eventstream.payload_part)
    except TimeoutError:
        if not exchange.is_started:
            raise service.texts.timed_out(invocation.endpoint, record.container) from None
        record.error = errors.TIME_EXCEEDED_CODE
        exchange.put(eventstream.model_stream_error(errors.STREAM_TIMED_OUT, errors.TIME_EXCEEDED_CODE))
    except ResponseBroken:
        record.error = errors.STREAM_BROKEN_CODE
        exchange.put(eventstream.model_stream_error(errors.STREAM_BROKEN, errors.STREAM_BROKEN_CODE))
    await finish(exchange)


async def fail_stream(exchange: Exchange, message: str) -> None:
    """End a stream that the platform interrupts, unless it has ended."""
    if exchange.is_finished:
        return
    exchange.put(eventstream.internal_stream_failure(message))
    await finish(exchange)


def _headers(
    service: InvocationService, invocation: Invocation, record: InvocationRecord, response: ClientResponse
) -> list[tuple[str, str]]:
    headers = service.response_headers(invocation, record, response.headers)
    headers["Content-Type"] = eventstream.CONTENT_TYPE
    headers["X-Amzn-SageMaker-Content-Type"] = response.headers.get("content-type", "application/octet-stream")
    return [*headers.items(), *UNBUFFERED_HEADERS]
