"""
Scrapes the `/metrics` pages of ready workers and publishes them under CloudWatch's names.

It scrapes every ten seconds while there are ready workers, and otherwise sleeps until the next write to the store.
"""

import asyncio
import time
from collections.abc import Callable

from headrace.cloudwatch.metrics.metric import Dimensions, Metric, StatisticSink
from headrace.cloudwatch.metrics.worker_page import Page, WorkerReading, metrics_between, read_page, reading_between
from headrace.cluster.launcher import Handle, WorkerPhase
from headrace.control.loops.store_access import run_periodically
from headrace.control.model.worker import WORKER, ReplicaSpec, WorkerRecord
from headrace.http.client import ClientRequest, send_once
from headrace.http.client_connection import NoResponse, ResponseBroken, ResponseTooLarge
from headrace.state.records import Record
from headrace.state.store import Store

PERIOD_S = 10.0
TIMEOUT_S = 3.0
"""Seconds for one page."""
MAX_PAGE_BYTES = 1024 * 1024
MAX_AT_ONCE = 32
"""Maximum number of pages fetched concurrently."""


class Scraper:
    """A task that scrapes ready workers; `run` until cancelled."""

    def __init__(
        self, *, store: Store, sink: StatisticSink, memory_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        """
        Create the scraper.

        Args:
            store: The workers' records.
            sink: Takes the measurements.
            memory_bytes: Memory of this host; the handle of a worker on another host has its own.
            clock: Returns the time, seconds since 1970.
        """
        self._store = store
        self._sink = sink
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._pages: dict[tuple[str, str], Page] = {}
        """(Worker, its process) → its latest page."""
        self.readings: dict[str, WorkerReading] = {}
        """Worker → its newest numbers."""
        self._room = asyncio.Semaphore(MAX_AT_ONCE)

    async def run(self) -> None:
        """Scrape until cancelled."""
        await run_periodically(
            self.pass_once, store=self._store, period_s=PERIOD_S, clock=self._clock, failure="scraper.failed"
        )

    async def pass_once(self) -> int:
        """Scrape each ready worker once; return their number."""
        records = await asyncio.to_thread(self._store.list, WORKER)
        serving = [
            (record, handle)
            for record in records
            if isinstance(record, Record) and (handle := _serving(record)) is not None
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
        page, before = read_page(text, at_s=self._clock()), self._pages.get(key)
        self._pages[key] = page
        self.readings[record.name] = reading_between(before, page)
        namespace, dimensions = series_of(record.spec)
        memory_bytes = self._memory_bytes if handle.memory_bytes is None else handle.memory_bytes
        for found in metrics_between(before, page, memory_bytes=memory_bytes):
            metric = Metric(namespace=namespace, name=found.name, dimensions=dimensions)
            self._sink.put_point(metric, found.point)


def _serving(record: WorkerRecord) -> Handle | None:
    if record.status.phase is not WorkerPhase.READY:
        return None
    return record.status.handle


def series_of(spec: ReplicaSpec) -> tuple[str, Dimensions]:
    """Return namespace and dimensions of a worker's metrics."""
    if spec.copy is not None:
        return "/aws/sagemaker/InferenceComponents", (("InferenceComponentName", spec.copy.component),)
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
