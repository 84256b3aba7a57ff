"""
CloudWatch metrics of invocations: each request when it ends, and the concurrency every ten seconds.

Names, units and dimensions are SageMaker's; `HeldRequests` and `HoldTime` are ours. A request to an inference component
also counts for the variant that hosts it, so that scaling policies on the variant work; not in strict mode, as AWS
documents the component's metrics only. Source: SageMaker developer guide,
"Amazon SageMaker AI metrics in Amazon CloudWatch", endpoint invocation metrics and inference component metrics.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.core.telemetry import get_logger
from headrace.platform.cloudwatch.metrics.metric import Bucket, Dimensions, Metric, MetricSink, StatisticSink
from headrace.platform.cluster.model_host.protocol import ModelTiming
from headrace.platform.gateway.metrics import MODEL_ERRORS, InvocationLabels, InvocationRecord
from headrace.platform.gateway.routing import replicas_of
from headrace.platform.state.routes import Route, VariantRoute

_LATENCIES = frozenset(
    (
        *("ModelLatency", "OverheadLatency", "FirstChunkLatency", "HoldTime", "ModelSetupTime", "ContainerLatency"),
        *("ModelLoadingWaitTime", "ModelDownloadingTime", "ModelLoadingTime", "ModelUnloadingTime"),
    )
)
"""Published in microseconds; the others have no unit."""


def _measured(record: InvocationRecord) -> Iterator[tuple[str, float]]:
    yield "Invocations", 1.0
    yield "Invocation4XXErrors", float(400 <= record.status < 500 and not record.is_gone)
    yield "Invocation5XXErrors", float(record.status >= 500)
    yield "InvocationModelErrors", float(record.model_status >= 400 or record.error in MODEL_ERRORS)
    if record.model_s is not None and record.overhead_s is not None:
        yield "ModelLatency", record.model_s * 1e6
        yield "OverheadLatency", record.overhead_s * 1e6


def _measured_models(timing: ModelTiming) -> Iterator[tuple[str, float]]:
    """
    Yield the metrics of a request to a multi-model endpoint.

    Source: SageMaker developer guide, "CloudWatch Metrics for Multi-Model Endpoint Deployments".
    """
    yield "ModelCacheHit", float(not timing.wait)
    for name, time_us in (
        ("ModelLoadingWaitTime", timing.wait or None),
        ("ModelDownloadingTime", timing.download),
        ("ModelLoadingTime", timing.load),
    ):
        if time_us is not None:
            yield name, float(time_us)
    for time_us in timing.unload:
        yield "ModelUnloadingTime", float(time_us)


NAMESPACE = "AWS/SageMaker"
WINDOW_S = 10
"""Source: `ConcurrentRequestsPerModel` and `ConcurrentRequestsPerCopy` are high-resolution metrics."""
SAMPLE_S = 1.0
"""Seconds between samples of the in-flight requests while there are replicas."""
_MAX_CACHED = 4096
"""Variants and components whose metrics are cached; above this the cache is cleared."""


class _InvocationMetrics(dict[str, Metric]):
    """The metrics of one variant, container or component; a component's have a dimension of their own, as on AWS."""

    def __init__(self, labels: InvocationLabels, container: str) -> None:
        super().__init__()
        self._dimensions: Dimensions = (("EndpointName", labels.endpoint), ("VariantName", labels.variant))
        if container:  # sorted by name
            self._dimensions = (("ContainerName", container), *self._dimensions)
        if labels.component:
            self._dimensions = (("InferenceComponentName", labels.component),)
        self.per_replica = self["InvocationsPerCopy" if labels.component else "InvocationsPerInstance"]
        self.concurrent = self["ConcurrentRequestsPerCopy" if labels.component else "ConcurrentRequestsPerModel"]

    def __missing__(self, name: str) -> Metric:
        metric = self[name] = Metric(namespace=NAMESPACE, name=name, dimensions=self._dimensions)
        return metric


class Publisher:
    """
    Publishes requests that have ended. Used by one thread, the event loop's.

    Each endpoint configuration has metrics of its own, by which a deployment's new and old fleet are compared. Those of
    a second are published together: a measurement by itself would cost as much again as those of the variant. Source:
    SageMaker developer guide, "Auto-Rollback Configuration and Monitoring", dimension EndpointConfigName.
    """

    def __init__(self, sink: StatisticSink, *, is_strict: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._sink = sink
        self.counts_hosts = not is_strict
        """Whether requests to components also count for the variants that host them."""
        self._clock = clock
        self._ready: dict[tuple[InvocationLabels, str], _InvocationMetrics] = {}
        self._busy: set[InvocationLabels] = set()
        """Variants and components with requests since the last `take_busy`."""
        self._configs: dict[tuple[str, str, str], dict[str, Bucket]] = {}
        """The measurements since they were last published, by endpoint, variant and configuration."""

    def publish(self, record: InvocationRecord, route: Route) -> None:
        now_s = self._clock()
        if record.is_without_capacity:
            for ready in self._without_capacity(record, route):
                self._sink.put(ready["NoCapacityInvocationFailures"], 1.0, now_s=now_s)
        if not record.variant:
            return
        if record.config:
            buckets = self._configs.setdefault((record.endpoint, record.variant, record.config), {})
            for name, value in _measured(record):
                buckets.setdefault(name, Bucket()).add(value, 1.0)
        variant = next((variant for variant in route.all_variants if variant.name == record.variant), None)
        if record.containers:
            self._publish_containers(record, now_s=now_s)
        if record.component:
            component = next((found.route for found in route.components if found.name == record.component), None)
            labels = InvocationLabels(record.endpoint, record.variant, record.component)
            self._publish_ended(labels, record, num_replicas(component), now_s=now_s)
        if not record.component or (self.counts_hosts and variant is not None and variant.instances):
            labels = InvocationLabels(record.endpoint, record.variant, "")
            self._publish_ended(labels, record, num_units(variant), now_s=now_s)
            if record.held_s and variant is not None and variant.max_concurrency is not None:
                setup = self.metrics_of(labels)["ModelSetupTime"]
                self._sink.put(setup, record.held_s * 1e6, now_s=now_s, unit="Microseconds")

    def _publish_ended(
        self, labels: InvocationLabels, record: InvocationRecord, num_sharing: int, *, now_s: float
    ) -> None:
        """Publish a request for a variant or component; `num_sharing` replicas or instances share its load."""
        self._busy.add(labels)
        ready = self.metrics_of(labels)
        self._sink.put(ready.per_replica, 1.0 / max(1, num_sharing), now_s=now_s)
        measured = list(_measured(record))
        if record.first_s is not None:
            measured.append(("FirstChunkLatency", (record.first_s - record.started_s) * 1e6))
            measured.append(("MidStreamErrors", float(record.status == 200 and record.error is not None)))
        if record.target_timing is not None:
            measured += _measured_models(record.target_timing)
        if record.held_s:
            measured += (("HeldRequests", 1.0), ("HoldTime", record.held_s * 1e6))
        for name, value in measured:
            self._sink.put(ready[name], value, now_s=now_s, unit="Microseconds" if name in _LATENCIES else "None")

    def _publish_containers(self, record: InvocationRecord, *, now_s: float) -> None:
        """
        Publish the latency of each container, and all measurements of one that the request named.

        Source: SageMaker developer guide, "Use logs and metrics to monitor an inference pipeline" and "Metrics for
        multi-container endpoints with direct invocation".
        """
        measured = [(record.containers[0], *found) for found in _measured(record) if record.is_direct]
        measured += [(name, "ContainerLatency", latency_s * 1e6) for name, latency_s in record.container_latencies()]
        for container, name, value in measured:
            if name not in ("ModelLatency", "InvocationModelErrors"):
                ready = self.metrics_of(InvocationLabels(record.endpoint, record.variant, ""), container)
                self._sink.put(ready[name], value, now_s=now_s, unit="Microseconds" if name in _LATENCIES else "None")

    def publish_configs(self) -> None:
        """Publish the requests since the last call for their endpoint configurations; called every second."""
        at_s, taken, self._configs = self._clock(), self._configs, {}
        for (endpoint, variant, config), buckets in taken.items():
            dimensions = (("EndpointConfigName", config), ("EndpointName", endpoint), ("VariantName", variant))
            for name, bucket in buckets.items():
                unit = "Microseconds" if name in _LATENCIES else "None"
                metric = Metric(namespace=NAMESPACE, name=name, dimensions=dimensions)
                self._sink.put_point(metric, bucket.point(at_s, unit))

    def take_busy(self) -> set[InvocationLabels]:
        """Return the variants and components with requests since the last call."""
        busy, self._busy = self._busy, set()
        return busy

    def publish_idle(self, labels: InvocationLabels, *, at_s: float) -> None:
        """Publish zero invocations: scale-in alarms need the zero."""
        ready = self.metrics_of(labels)
        self._sink.put(ready["Invocations"], 0.0, now_s=at_s)
        self._sink.put(ready.per_replica, 0.0, now_s=at_s)

    def metrics_of(self, labels: InvocationLabels, container: str = "") -> _InvocationMetrics:
        ready = self._ready.get((labels, container))
        if ready is None:
            if len(self._ready) >= _MAX_CACHED:
                self._ready.clear()
            ready = self._ready[labels, container] = _InvocationMetrics(labels, container)
        return ready

    def _without_capacity(self, record: InvocationRecord, route: Route) -> Iterator[_InvocationMetrics]:
        """Yield the metrics of the requested component and its host, or of all variants without a replica."""
        if record.component:
            yield self.metrics_of(InvocationLabels(record.endpoint, record.variant, record.component))
            host = next((found.variant for found in route.components if found.name == record.component), "")
            if self.counts_hosts and any(variant.name == host and variant.instances for variant in route.variants):
                yield self.metrics_of(InvocationLabels(record.endpoint, host, ""))
            return
        for variant in route.variants:
            if not num_replicas(variant):
                yield self.metrics_of(InvocationLabels(record.endpoint, variant.name, ""))


def num_replicas(variant: VariantRoute | None) -> int:
    return 0 if variant is None else len(replicas_of(variant))


def num_units(variant: VariantRoute | None) -> int:
    """Return the number of units that share a variant's load: instances that host components, else replicas."""
    return num_replicas(variant) if variant is None or not variant.instances else variant.instances


class _Sampled(NamedTuple):
    """A variant or component to sample, with the workers whose requests count for it."""

    labels: InvocationLabels
    workers: Sequence[str]
    num_units: int
    is_host: bool = False
    """True for a variant that hosts components: it is sampled even while no component has a copy on it."""


@dataclass(slots=True)
class _Window:
    """The samples of one variant or component in one window."""

    num_samples: int = 0
    per_replica: float = 0.0
    is_serving: bool = False
    """True if it had a replica at some point of the window."""


@dataclass(slots=True, kw_only=True)
class Sampler:
    """Publishes the mean number of in-flight requests per replica over each window of ten seconds."""

    publisher: Publisher
    sink: MetricSink
    routes: Callable[[], Mapping[str, Route]]
    loads: Callable[[], Mapping[str, int]]
    """Returns the in-flight requests of each worker."""
    held: Callable[[], Mapping[str, int]]
    """Returns the held requests of each endpoint."""
    each_window: Callable[[], None] = lambda: None
    """Called once in each window, to publish gauges."""
    clock: Callable[[], float] = time.time
    _windows: dict[InvocationLabels, _Window] = field(default_factory=dict)
    _window: int = -1

    async def run(self) -> None:
        while True:
            try:
                self.sample()
            except Exception:  # noqa: BLE001 -- an edge: a bug in metrics must not stop the platform
                get_logger().exception("metrics.crashed")
            await asyncio.sleep(SAMPLE_S if self._windows else WINDOW_S - self.clock() % WINDOW_S)

    def sample(self) -> None:
        """Count the requests in flight now; publish the window that has ended."""
        self.publisher.publish_configs()
        window = int(self.clock() // WINDOW_S)
        if window != self._window:
            at_s, busy = self._window * WINDOW_S, self.publisher.take_busy()
            for labels, seen in self._windows.items():
                mean = seen.per_replica / seen.num_samples
                self.sink.put(self.publisher.metrics_of(labels).concurrent, mean, now_s=at_s)
                if seen.is_serving and labels not in busy:
                    self.publisher.publish_idle(labels, at_s=at_s)
            self._windows.clear()
            self._window = window
            self.each_window()
        loads, held = self.loads(), self.held()
        for route in self.routes().values():
            for sampled in _served(route, with_hosts=self.publisher.counts_hosts):
                is_alone = [variant.name for variant in route.variants] == [sampled.labels.variant]
                num_held = held.get(route.endpoint, 0) if is_alone and not route.components else 0
                if not sampled.workers and not num_held and not sampled.is_host:
                    continue
                measured = self._windows.setdefault(sampled.labels, _Window())
                measured.num_samples += 1
                measured.is_serving |= sampled.is_host or (bool(sampled.workers) and route.async_output is None)
                in_flight = num_held + sum(loads.get(worker, 0) for worker in sampled.workers)
                measured.per_replica += in_flight / max(1, sampled.num_units)


def _served(route: Route, *, with_hosts: bool) -> Iterator[_Sampled]:
    """
    Yield the variants and components of a route; variants that host components with the copies of all of them.

    Adapters are left out: the requests in flight are known by worker, and their workers are those of their base.
    """
    components = [component for component in route.components if component.route.adapter is None]
    for variant in route.all_variants:
        labels, is_host = InvocationLabels(route.endpoint, variant.name, ""), bool(variant.instances)
        if not is_host:
            yield _Sampled(labels, _workers_of(variant), num_replicas(variant))
        elif with_hosts:
            copies = [
                worker
                for component in components
                if component.variant == variant.name
                for worker in _workers_of(component.route)
            ]
            yield _Sampled(labels, copies, variant.instances, is_host=True)
    for component in components:
        labels = InvocationLabels(route.endpoint, component.route.name, component.name)
        yield _Sampled(labels, _workers_of(component.route), num_replicas(component.route))


def _workers_of(variant: VariantRoute) -> list[str]:
    return [replica.worker for fleet in variant.fleets for replica in fleet.replicas]
