"""
Publishes measurements of workers and capacities as CloudWatch metrics, every ten seconds while there is something.

The scraper reads the `/metrics` pages of ready workers. The capacity recorder publishes the current and desired
capacity of endpoints and components, as a history that survives restarts; AWS's CloudWatch has no such metrics: their
names are members of the Describe operations. Without workers or endpoints they sleep until the next write to the store.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from headrace.platform.cloudwatch.metrics.metric import Dimensions, Metric, MetricSink, StatisticSink
from headrace.platform.cloudwatch.metrics.worker_page import (
    Page,
    WorkerReading,
    metrics_between,
    read_page,
    reading_between,
)
from headrace.platform.cluster.launcher import Handle, WorkerPhase
from headrace.platform.control.loops.store_access import run_periodically
from headrace.platform.control.model.component import INFERENCE_COMPONENT, ComponentRecord, current_copies
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointRecord, variant_counts
from headrace.platform.control.model.worker import WORKER, ReplicaSpec, WorkerRecord
from headrace.platform.control.model.workload import serving_revision
from headrace.platform.state.records import Record, Unreadable
from headrace.platform.state.routes import INTERNAL
from headrace.platform.state.store import Store
from headrace.serving.http.client import ClientRequest, send_once
from headrace.serving.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge

PERIOD_S = 10.0
TIMEOUT_S = 3.0
"""Seconds for one page."""
MAX_PAGE_BYTES = 1024 * 1024
MAX_AT_ONCE = 32
"""Maximum number of pages fetched concurrently."""


@dataclass(slots=True, kw_only=True)
class Scraper:
    """A task that scrapes ready workers; `run` until cancelled."""

    store: Store
    sink: StatisticSink
    memory_bytes: int
    """Memory of this host; the handle of a worker on another host has its own."""
    clock: Callable[[], float] = time.time
    readings: dict[str, WorkerReading] = field(default_factory=dict)
    """Worker → its newest numbers."""
    _pages: dict[tuple[str, str], Page] = field(default_factory=dict)
    """(Worker, its process) → its latest page."""
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE))

    async def run(self) -> None:
        await run_periodically(
            self.pass_once, store=self.store, period_s=PERIOD_S, clock=self.clock, failure="scraper.failed"
        )

    async def pass_once(self) -> int:
        """Scrape each ready worker once; return their number."""
        records = await asyncio.to_thread(self.store.list, WORKER)
        serving = [
            (record, record.status.handle)
            for record in records
            if isinstance(record, Record) and record.status.phase is WorkerPhase.READY and record.status.handle
        ]
        keys = {(record.name, str(handle.facts)) for record, handle in serving}
        self._pages = {key: page for key, page in self._pages.items() if key in keys}
        await asyncio.gather(*(self._scrape(record, handle) for record, handle in serving))
        names = {record.name for record, _ in serving}
        self.readings = {name: reading for name, reading in self.readings.items() if name in names}
        return len(serving)

    async def _scrape(self, record: WorkerRecord, handle: Handle) -> None:
        async with self._room:
            text = await fetch(handle.url, token=handle.token)
        if text is None:
            self.readings.pop(record.name, None)
            return  # a custom image may have no such page
        key = (record.name, str(handle.facts))
        page, before = read_page(text, at_s=self.clock()), self._pages.get(key)
        self._pages[key] = page
        self.readings[record.name] = reading_between(before, page)
        namespace, dimensions = series_of(record.spec)
        memory_bytes = self.memory_bytes if handle.memory_bytes is None else handle.memory_bytes
        self._put(before, page, namespace, dimensions, memory_bytes=memory_bytes)
        for name, own in page.containers.items():
            earlier = before.containers.get(name) if before is not None else None
            self._put(earlier, own, namespace, (*dimensions, ("ContainerName", name)), memory_bytes=memory_bytes)

    def _put(
        self, before: Page | None, page: Page, namespace: str, dimensions: Dimensions, *, memory_bytes: int
    ) -> None:
        for found in metrics_between(before, page, memory_bytes=memory_bytes):
            metric = Metric(namespace=namespace, name=found.name, dimensions=tuple(sorted(dimensions)))
            self.sink.put_point(metric, found.point)


def series_of(spec: ReplicaSpec) -> tuple[str, Dimensions]:
    """Return namespace and dimensions of a worker's metrics."""
    if spec.copy is not None:
        return "/aws/sagemaker/InferenceComponents", (("InferenceComponentName", spec.copy.component),)
    if spec.endpoint.startswith(INTERNAL):
        host, _, _ = spec.log_stream.rpartition("-")
        return "/aws/sagemaker/TransformJobs", (("Host", host),)
    dimensions = (("EndpointName", spec.endpoint), ("VariantName", spec.variant))
    return "/aws/sagemaker/Endpoints", dimensions


async def fetch(url: str, *, token: str = "") -> str | None:
    """Return a worker's page of metrics; None if the worker sends none in time."""
    authorization = (("Authorization", f"Bearer {token}"),) if token else ()
    request = ClientRequest(method="GET", path="/metrics", headers=(("Accept", "text/plain"), *authorization))
    try:
        async with asyncio.timeout(TIMEOUT_S), send_once(url, request) as response:
            page = await response.read(MAX_PAGE_BYTES)
    except (NoResponse, ResponseBroken, ResponseTooLarge, TimeoutError):
        return None
    return page.decode("utf-8", errors="replace") if response.status == 200 else None


CapacityMetric = tuple[Metric, float]
"""A measurement of a current or desired capacity."""


@dataclass(slots=True, kw_only=True)
class CapacityRecorder:
    """A task that publishes capacities; `run` until cancelled."""

    store: Store
    sink: MetricSink
    clock: Callable[[], float] = time.time

    async def run(self) -> None:
        await run_periodically(
            partial(asyncio.to_thread, self.pass_once),
            store=self.store,
            period_s=PERIOD_S,
            clock=self.clock,
            failure="capacities.failed",
        )

    def pass_once(self) -> int:
        """Publish the current capacities; return the number of measurements."""
        now_s = self.clock()
        capacities = [
            *(capacity for record in self.store.list(ENDPOINT) for capacity in of_endpoint(record)),
            *(capacity for record in self.store.list(INFERENCE_COMPONENT) for capacity in of_component(record)),
        ]
        for metric, value in capacities:
            self.sink.put(metric, value, now_s=now_s, unit="Count")
        return len(capacities)


def of_endpoint(record: EndpointRecord | Unreadable) -> Iterator[CapacityMetric]:
    """Yield the instance counts of each variant; nothing for an endpoint that is being deleted or cannot be read."""
    if isinstance(record, Unreadable) or record.deleting_s is not None:
        return
    revision = serving_revision(record)
    for workload in revision.workloads:
        if "ServerlessConfig" in revision.variant_config(workload.variant):
            continue
        dimensions = (("EndpointName", record.name), ("VariantName", workload.variant))
        counts = variant_counts(record, revision, workload)
        yield from _pair("/aws/sagemaker/Endpoints", "InstanceCount", dimensions, *counts)


def of_component(record: ComponentRecord | Unreadable) -> Iterator[CapacityMetric]:
    """Yield the copy counts of a component; nothing for an adapter, or if it is being deleted or cannot be read."""
    if isinstance(record, Unreadable) or record.deleting_s is not None or record.spec.revision.base:
        return
    dimensions = (("InferenceComponentName", record.name),)
    counts = current_copies(record), record.spec.revision.copies
    yield from _pair("/aws/sagemaker/InferenceComponents", "CopyCount", dimensions, *counts)


def _pair(namespace: str, word: str, dimensions: Dimensions, current: int, desired: int) -> Iterator[CapacityMetric]:
    for name, value in ((f"Current{word}", current), (f"Desired{word}", desired)):
        yield Metric(namespace=namespace, name=name, dimensions=dimensions), float(value)
