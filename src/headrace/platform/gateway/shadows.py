"""
Copies of requests for shadow variants, whose answers are read to the end and discarded.

A copy is sent when its request has been sent, and nothing waits for it: copies beyond a limit, or while the shadow
variant has no replica, are dropped and counted. Requests of stateful sessions are not copied: a shadow variant does not
know the sessions of production. Source: SageMaker developer guide, "Shadow tests".
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Final, Protocol

from headrace.core.telemetry import get_logger
from headrace.platform.gateway.errors import ErrorTexts
from headrace.platform.gateway.metrics import GatewayMetrics, InvocationLabels, InvocationRecord
from headrace.platform.gateway.routing import Draw, RoutingQuery, replicas_of
from headrace.platform.state.routes import Route, VariantRoute
from headrace.serving.http.client import ClientRequest
from headrace.serving.http.client_connection import ClientResponse, ResponseBroken
from headrace.serving.wire.aws.errors import AwsError

MAX_COPIES: Final = 256
"""Copies in flight to the shadow variant of one endpoint."""
MAX_COPIED_BYTES: Final = 64 * 1024 * 1024
"""Bodies of all copies in flight."""
_SESSION_HEADER: Final = "x-amzn-sagemaker-session-id"


class Invoke(Protocol):
    """Sends a request to a worker: `InvocationService.invoke`."""

    def __call__(
        self, endpoint: str, query: RoutingQuery, request: ClientRequest, record: InvocationRecord, *, timeout_s: float
    ) -> AbstractAsyncContextManager[ClientResponse]: ...


@dataclass(slots=True, kw_only=True)
class Shadows:
    """Sends copies to the shadow variants; used by the event loop's thread."""

    invoke: Invoke
    texts: ErrorTexts
    metrics: GatewayMetrics
    draw: Draw
    count: Callable[[InvocationRecord], None]
    """Called with each copy that has ended."""
    _in_flight: Counter[str] = field(default_factory=Counter)
    """Copies by endpoint."""
    _failing: set[str] = field(default_factory=set)
    """Endpoints whose last copy failed."""
    _num_bytes: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def copy(
        self, route: Route, query: RoutingQuery, request: ClientRequest, record: InvocationRecord, *, timeout_s: float
    ) -> None:
        """Start sending copies of a request to the route's shadow variants, each by its share."""
        if any(name.lower() == _SESSION_HEADER for name, _ in request.headers):
            return
        for shadow in route.shadows:
            if shadow.weight <= 0 or (shadow.weight < 1 and self.draw() >= shadow.weight):
                continue
            if not self._has_room(route.endpoint, shadow, request):
                self.metrics.counter(InvocationLabels(route.endpoint, shadow.name, "")).copies_dropped += 1
                continue
            copied = replace(query, target_variant=shadow.name, is_copy=True, wakes=False, worker=None, affinity=None)
            self._in_flight[route.endpoint] += 1
            self._num_bytes += len(request.body)
            task = asyncio.create_task(self._run(copied, request, record.of_copy(perf_counter()), timeout_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Abort the copies in flight."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _has_room(self, endpoint: str, shadow: VariantRoute, request: ClientRequest) -> bool:
        is_full = self._num_bytes + len(request.body) > MAX_COPIED_BYTES
        return bool(replicas_of(shadow)) and self._in_flight[endpoint] < MAX_COPIES and not is_full

    async def _run(
        self, query: RoutingQuery, request: ClientRequest, record: InvocationRecord, timeout_s: float
    ) -> None:
        endpoint = record.endpoint
        try:
            await self._send(query, request, record, timeout_s)
            record.status = 200
        except AwsError as error:
            record.status, record.error = error.http_status, error.code
        except Exception:  # noqa: BLE001 -- an edge: a copy must not disturb its request
            record.status, record.error = 500, "InternalFailure"
            get_logger().exception("shadow.crashed", endpoint=endpoint)
        finally:
            self._in_flight[endpoint] -= 1
            if not self._in_flight[endpoint]:
                del self._in_flight[endpoint]
            self._num_bytes -= len(request.body)
        record.ended_s = perf_counter()
        self.count(record)
        self._log(record)

    def _log(self, record: InvocationRecord) -> None:
        """Log when copies begin to fail: a line for each would cost more than the copy."""
        if record.error is None:
            self._failing.discard(record.endpoint)
        elif record.endpoint not in self._failing:
            self._failing.add(record.endpoint)
            get_logger().warning(
                "shadow.failing",
                endpoint=record.endpoint,
                variant=record.variant,
                worker=record.worker,
                error=record.error,
                model_status=record.model_status,
            )

    async def _send(
        self, query: RoutingQuery, request: ClientRequest, record: InvocationRecord, timeout_s: float
    ) -> None:
        """Send a copy and read its answer to the end. Raises `AwsError` as if the answer were for a client."""

        def discard(part: bytes) -> bool:
            record.first_s = record.first_s or perf_counter()
            record.num_parts += 1
            record.num_bytes += len(part)
            return True

        try:
            async with self.invoke(record.endpoint, query, request, record, timeout_s=timeout_s) as response:
                await response.relay(discard, _drained)
                if not 200 <= response.status < 300:
                    raise self.texts.refused(record.endpoint, response.status, b"", record.container)
        except TimeoutError:
            raise self.texts.timed_out(record.endpoint, record.container) from None
        except ResponseBroken:
            raise self.texts.incomplete_response(record.endpoint, record.model_status, record.container) from None


async def _drained() -> None:
    """Return at once: nothing is kept."""
