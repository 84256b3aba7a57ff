"""
A queue of asynchronous invocations, which returns those that start, expire or have lost their endpoint. Pure.

First come, first served within an endpoint; endpoints do not wait for each other.
"""

import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.platform.cloudwatch.metrics.metric import Dimensions, Metric, MetricSink
from headrace.platform.gateway.async_files import PendingInvocation
from headrace.platform.gateway.publishing import NAMESPACE
from headrace.platform.gateway.routing import replicas_of
from headrace.platform.state.routes import Route

_FEW_STARTED = 1000
"""Started invocations that may stay in the expiry heap."""


@dataclass(slots=True)
class DueInvocations:
    """Invocations that have just left the queue, by what happens to them next."""

    begin: list[PendingInvocation] = field(default_factory=list)
    expired: list[PendingInvocation] = field(default_factory=list)
    orphaned: list[PendingInvocation] = field(default_factory=list)
    """Invocations whose endpoint has been deleted."""
    starved: list[str] = field(default_factory=list)
    """Endpoints with waiting invocations and no replica."""
    next_s: float | None = None
    """When the next invocation expires, seconds since 1970."""


@dataclass(slots=True)
class Backlog:
    """The accepted invocations of an endpoint that have not ended."""

    size: int = 0
    """Waiting and running invocations."""
    oldest_s: float = math.inf
    """When the oldest of them was accepted, seconds since 1970."""

    def add(self, pending: PendingInvocation) -> None:
        self.size += 1
        self.oldest_s = min(self.oldest_s, pending.accepted_s)


class AsyncQueue:
    def __init__(self) -> None:
        self._waiting: dict[str, PendingInvocation] = {}
        self._by_endpoint: dict[str, deque[str]] = {}
        self._expiries: list[tuple[float, str]] = []
        self._running: dict[str, dict[str, PendingInvocation]] = {}
        """The running invocations of each endpoint, by their ids."""

    def __len__(self) -> int:
        return len(self._waiting)

    def backlogs(self) -> dict[str, Backlog]:
        found: dict[str, Backlog] = {}
        for pending in self._waiting.values():
            found.setdefault(pending.endpoint, Backlog()).add(pending)
        for endpoint, running in self._running.items():
            backlog = found.setdefault(endpoint, Backlog())
            for pending in running.values():
                backlog.add(pending)
        return found

    def add(self, pending: PendingInvocation) -> None:
        self._waiting[pending.id] = pending
        self._by_endpoint.setdefault(pending.endpoint, deque()).append(pending.id)
        heapq.heappush(self._expiries, (pending.expires_s, pending.id))

    def ended(self, pending: PendingInvocation) -> None:
        """Record that a running invocation has ended, so that another one can start."""
        running = self._running[pending.endpoint]
        del running[pending.id]
        if not running:
            del self._running[pending.endpoint]

    def due(self, routes: Mapping[str, Route], now_s: float) -> DueInvocations:
        """Remove and return the invocations that are due at `now_s`."""
        due = DueInvocations()
        while self._expiries and self._expiries[0][0] <= now_s:
            _, pending_id = heapq.heappop(self._expiries)
            if pending_id in self._waiting:
                due.expired.append(self._waiting.pop(pending_id))
        for endpoint in list(self._by_endpoint):
            self._take(endpoint, routes.get(endpoint), due)
        # Started invocations in the expiry heap: at its head they cause wake-ups, and many take memory.
        if len(self._expiries) > 2 * len(self._waiting) + _FEW_STARTED:
            self._expiries = [entry for entry in self._expiries if entry[1] in self._waiting]
            heapq.heapify(self._expiries)
        while self._expiries and self._expiries[0][1] not in self._waiting:
            heapq.heappop(self._expiries)
        if self._expiries:
            due.next_s = self._expiries[0][0]
        return due

    def _take(self, endpoint: str, route: Route | None, due: DueInvocations) -> None:
        queue = self._by_endpoint[endpoint]
        capacity = capacity_of(route)
        while queue:
            pending = self._waiting.get(queue[0])
            if pending is None:
                queue.popleft()
            elif is_orphaned(pending, route):
                due.orphaned.append(self._waiting.pop(queue.popleft()))
            elif len(self._running.get(endpoint, ())) < capacity:
                due.begin.append(self._waiting.pop(queue.popleft()))
                self._running.setdefault(endpoint, {})[pending.id] = pending
            else:
                if capacity == 0:
                    due.starved.append(endpoint)
                return
        del self._by_endpoint[endpoint]


def is_orphaned(pending: PendingInvocation, route: Route | None) -> bool:
    """Return whether the endpoint of an invocation has no route; one that was created again has another uid."""
    return route is None or pending.endpoint_uid != route.endpoint_uid


def capacity_of(route: Route | None) -> int:
    """Return the number of asynchronous invocations that an endpoint runs at a time."""
    if route is None or route.async_output is None:
        return 0
    return num_endpoint_replicas(route) * route.async_output.max_concurrent_per_replica


def num_endpoint_replicas(route: Route) -> int:
    """Return the number of replicas that serve an endpoint, over all of its variants."""
    return sum(len(replicas_of(variant)) for variant in route.variants)


_MICROSECONDS = 1e6
_EMPTY = Backlog()


@dataclass(slots=True, kw_only=True)
class AsyncOutcome:
    """The measurements of one invocation that has ended. Times are seconds since 1970, durations are seconds."""

    endpoint: str
    variant: str = ""
    """The variant that answered; empty if none did."""
    accepted_s: float
    began_s: float
    ended_s: float = 0.0
    download_s: float | None = None
    """Duration of the download of the input. None: it came with the request, or the download failed."""
    upload_s: float | None = None
    """Duration of the upload of the output. None: there is no output."""
    model_s: float | None = None
    """Duration of the model's response. None: the model was not called, or did not answer."""
    model_status: int = 0
    is_download_failed: bool = False
    is_upload_failed: bool = False
    is_failed: bool = False


class AsyncPublisher:
    """
    Publishes backlogs and outcomes as CloudWatch metrics. Used by one thread, the event loop's.

    The backlog of each endpoint is published every ten seconds, also while the endpoint has no replica, because
    autoscaling needs it then; each invocation is published when it ends. Names, units and dimensions are SageMaker's.
    Source: SageMaker developer guide, "Monitor asynchronous endpoint" (which misspells `InvocationsProcessed`).
    """

    def __init__(self, sink: MetricSink, *, clock: Callable[[], float] = time.time) -> None:
        self._sink = sink
        self._clock = clock

    def publish_backlogs(self, routes: Mapping[str, Route], backlogs: Mapping[str, Backlog]) -> None:
        """Publish the backlog of each asynchronous endpoint; the backlog per instance only if it has instances."""
        now_s = self._clock()
        for endpoint, route in routes.items():
            if route.async_output is None:
                continue
            dimensions = (("EndpointName", endpoint),)
            backlog, num_serving = backlogs.get(endpoint, _EMPTY), num_endpoint_replicas(route)
            age_s = max(0.0, now_s - backlog.oldest_s) if backlog.size else 0.0
            self._put("ApproximateBacklogSize", backlog.size, dimensions, unit="Count")
            self._put("ApproximateAgeOfOldestRequest", age_s, dimensions, unit="Seconds")
            self._put(
                "HasBacklogWithoutCapacity", float(backlog.size > 0 and num_serving == 0), dimensions, unit="Count"
            )
            if num_serving:
                self._put("ApproximateBacklogSizePerInstance", backlog.size / num_serving, dimensions, unit="Count")

    def publish_expired(self, route: Route) -> None:
        self._put("ExpiredRequests", 1.0, _dimensions(route, ""), unit="Count")

    def publish(self, outcome: AsyncOutcome, route: Route) -> None:
        dimensions = _dimensions(route, outcome.variant)
        for name, value in (
            ("InvocationsProcessed", 1.0),
            ("InvocationFailures", float(outcome.is_failed)),
            ("RequestDownloadFailures", float(outcome.is_download_failed)),
            ("ResponseUploadFailures", float(outcome.is_upload_failed)),
        ):
            self._put(name, value, dimensions, unit="Count")
        if outcome.model_status:
            self._put("Invocation4XXErrors", float(400 <= outcome.model_status < 500), dimensions)
            self._put("Invocation5XXErrors", float(outcome.model_status >= 500), dimensions)
        for name, seconds in (
            ("TimeInBacklog", outcome.began_s - outcome.accepted_s),
            ("RequestDownloadLatency", outcome.download_s),
            ("ResponseUploadLatency", outcome.upload_s),
            ("ModelLatency", outcome.model_s),
        ):
            if seconds is not None:
                self._put(name, max(0.0, seconds) * _MICROSECONDS, dimensions, unit="Microseconds")
        total_s = max(0.0, outcome.ended_s - outcome.accepted_s)
        self._put("TotalProcessingTime", total_s * 1e3, dimensions, unit="Milliseconds")

    def _put(self, name: str, value: float, dimensions: Dimensions, *, unit: str = "None") -> None:
        metric = Metric(namespace=NAMESPACE, name=name, dimensions=dimensions)
        self._sink.put(metric, value, now_s=self._clock(), unit=unit)


def _dimensions(route: Route, variant: str) -> Dimensions:
    """Return the dimensions of a variant; invocations that none has answered count for the endpoint's only variant."""
    name = variant or (route.variants[0].name if route.variants else "")
    return (("EndpointName", route.endpoint), ("VariantName", name))
