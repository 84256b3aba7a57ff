"""The loops of the leader, which act on the records: one object for each term, with a store that fences its writes."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.autoscaling.loops.autoscaler import Autoscaler
from headrace.cloudwatch.metrics.worker_page import WorkerReading
from headrace.cloudwatch.series.file import FileSeries
from headrace.cluster.launcher import Launcher
from headrace.cluster.platform_logs import PlatformLogs
from headrace.control.loops.capacity_recorder import CapacityRecorder
from headrace.control.loops.reconciler import Reconciler
from headrace.control.loops.scraper import Scraper
from headrace.control.planning.worker_build import WorkerDefaults
from headrace.core.errors import Unavailable
from headrace.core.telemetry import get_logger
from headrace.gateway.app import Gateway
from headrace.gateway.publishing import Sampler
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope

_RETRY_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class Leading:
    store: Store
    series: FileSeries
    launcher: Launcher
    logs: PlatformLogs
    gateway: Gateway
    sampler: Sampler
    defaults: WorkerDefaults
    aws_scope: AwsScope
    memory_bytes: int
    """Memory of this host."""
    is_strict: bool
    on_change: Callable[[bool], None] = lambda _: None
    """Called with True at the start of a term, and with False at its end."""
    _reconciler: Reconciler | None = None
    _scraper: Scraper | None = None

    @property
    def readings(self) -> Mapping[str, WorkerReading]:
        """Worker → its newest numbers; empty while another platform leads."""
        return {} if self._scraper is None else self._scraper.readings

    async def _begin(self, term: int) -> None:
        """Begin a term as soon as the store can be written: a full disk must not stop the platform."""
        while True:
            try:
                await asyncio.to_thread(self.store.begin_term, term)
            except Unavailable as error:
                get_logger().warning("platform.cannot_lead", reason=error.message, retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def look_at_workers(self) -> None:
        """Reconcile now, because a worker takes no connection; nothing while another platform leads."""
        if self._reconciler is not None:
            self._reconciler.wake_up.end()

    async def run(self, term: int) -> None:
        """Begin a term and run the loops until cancelled. Raises `Fenced`, or the error of a loop that failed."""
        await self._begin(term)
        store = self.store.fenced(term)
        self._reconciler = Reconciler(
            store=store,
            launcher=self.launcher,
            logs=self.logs,
            aws_scope=self.aws_scope,
            defaults=self.defaults,
            loads=lambda: self.gateway.loads,
        )
        self._scraper = Scraper(store=store, sink=self.series, memory_bytes=self.memory_bytes)
        loops = {
            "reconciler": self._reconciler.run(),
            "autoscaler": Autoscaler(
                store=store, series=self.series, aws_scope=self.aws_scope, is_strict=self.is_strict
            ).run(),
            "worker metrics": self._scraper.run(),
            "capacities": CapacityRecorder(store=store, sink=self.series).run(),
            "in-flight sampler": self.sampler.run(),
            "asynchronous invocations": self.gateway.run_async(),
        }
        self.on_change(True)
        tasks = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task
        finally:
            self.on_change(False)
            self._reconciler = self._scraper = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
