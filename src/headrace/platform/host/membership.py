"""
Membership of this process in a platform, and the time in which it leads.

The leader runs `lead(term)`; it is cancelled as soon as the lease may have passed to another member, by this process's
own clock. Losing the lease stops nothing else: the member serves on, and leads again when the lease is free.

During an upgrade members of two versions share the store. The newest leads: a member that cannot read all records that
another one writes gives its lease up, until the other one is gone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from headrace.core.errors import Unavailable
from headrace.core.files import Files
from headrace.core.telemetry import get_logger
from headrace.platform.autoscaling.loops.autoscaler import Autoscaler
from headrace.platform.cloudformation.calls import LeaderCall
from headrace.platform.cloudformation.loop import StackLoop
from headrace.platform.cloudwatch.metrics.worker_page import WorkerReading
from headrace.platform.cloudwatch.series.buffered import BufferedSeries
from headrace.platform.cluster.launcher import Launcher
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.loops.experiments import Experiments
from headrace.platform.control.loops.reconciler import Reconciler
from headrace.platform.control.loops.scraper import CapacityRecorder, Scraper
from headrace.platform.control.model.jobs import AI_BENCHMARK_JOB, OPTIMIZATION_JOB, RECOMMENDATIONS_JOB
from headrace.platform.control.model.transform_job import TRANSFORM_JOB
from headrace.platform.control.planning.worker_build import WorkerDefaults
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.batches import BatchGateway
from headrace.platform.gateway.publishing import Sampler
from headrace.platform.host.notifications import Notifications
from headrace.platform.jobs.benchmark import BenchmarkRunner
from headrace.platform.jobs.inputs import Objects
from headrace.platform.jobs.loop import JobRunner, Jobs
from headrace.platform.jobs.optimization import OptimizationRunner
from headrace.platform.jobs.recommendations import RecommendationsRunner
from headrace.platform.jobs.transform_jobs import TransformRunner
from headrace.platform.state.coordination import HEARTBEAT_S, LEASE_S, Coordination, Displaced, Member, Standing
from headrace.platform.state.records import AnyKind, Fenced
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.scope import AwsScope

_LEAVE_POLL_S = 0.1
STAND_BACK_S: Final = 30.0
"""Seconds for which a member that is cut off from most machines does not lead again."""

Lead = Callable[[int], Awaitable[None]]
"""Begins a term and runs the leader's loops until cancelled. An exception stops the platform, except `Fenced`."""


class Membership:
    """Participation of this process in its platform: alone, as no other one can open its store, so it always leads."""

    is_outdated = False
    """True while a platform at another address writes records that this process cannot read."""
    is_displaced = False
    """True after `run` has raised `Displaced`: the records are those of other workers now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, lead: Lead) -> None:
        """Take part until cancelled, and lead at times."""
        await lead(await asyncio.to_thread(self._store.term) + 1)

    def has_lease(self) -> bool:
        """Return whether this process may act as the leader, by its own clock."""
        return True

    def resign(self) -> None:
        """Let another member lead from now on, if there is one: this process is shutting down."""

    async def leave(self) -> bool:
        """Give the lease up; return whether other members go on with the workers."""
        return False


@dataclass
class Shared(Membership):
    """Membership of a process that shares the platform's store with others, by heartbeats."""

    coordination: Coordination
    """It is open."""
    on_standing: Callable[[Standing], None] = lambda _: None
    """Called after each heartbeat."""
    is_heir: Callable[[Member], bool] = lambda _: True
    """Returns whether another member goes on with the workers of this one."""
    is_isolated: Callable[[], bool] = lambda: False
    """Returns whether another machine should lead, because this one reaches too few."""
    heartbeat_s: float = HEARTBEAT_S
    clock: Callable[[], float] = time.monotonic
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="membership")
    )
    """Heartbeats do not wait for other work in the default threads."""
    _lease_until_s: float = 0.0
    _leading: "asyncio.Task[None] | None" = None
    _led_in: int | None = None
    """The last term in which this member has led. Each time is another term, which fences what is left of the last."""
    _is_failing: bool = False
    _has_resigned: bool = False
    _stands_back_until_s: float = 0.0
    _has_others: bool = False
    _newer: Member | None = None
    """A member that writes records which this process cannot read."""

    async def run(self, lead: Lead) -> None:
        """Send heartbeats until cancelled, and lead while this member holds the lease. Raises `Displaced`."""
        try:
            while True:
                standing = await self._beat()
                if standing is not None:
                    self.on_standing(standing)
                    if self.has_lease() and self._leading is None and standing.term != self._led_in:
                        get_logger().info("platform.leads", term=standing.term)
                        self._led_in = standing.term
                        self._leading = asyncio.create_task(self._lead(lead, standing.term), name="leader")
                await self._pause()
        finally:
            await self._stop_leading()

    def resign(self) -> None:
        self._has_resigned = True

    async def leave(self) -> bool:
        """Give the lease up; return whether others go on with the workers. True if the database cannot tell."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + LEASE_S + _LEAVE_POLL_S
        try:
            others = await loop.run_in_executor(self._threads, self.coordination.leave)
            # They may have been killed, or be leaving as well.
            while any(map(self.is_heir, others)) and loop.time() < deadline_s:
                await asyncio.sleep(_LEAVE_POLL_S)
                others = await loop.run_in_executor(self._threads, self.coordination.others)
        except Unavailable:
            return True
        else:
            return any(map(self.is_heir, others))
        finally:
            self._threads.shutdown(wait=False)

    def has_lease(self) -> bool:
        return self.clock() < self._lease_until_s

    async def _beat(self) -> Standing | None:
        """Send one heartbeat; stop leading when the lease expires before the answer. None: the database failed."""
        began_s = self.clock()
        if self._leading is not None and self.is_isolated():
            get_logger().warning("platform.isolated", reason="Most machines do not answer.", retry_s=STAND_BACK_S)
            self._stands_back_until_s = began_s + STAND_BACK_S
        stands_back = self._has_others and (self._has_resigned or began_s < self._stands_back_until_s)
        is_candidate = self._newer is None and not stands_back
        if not is_candidate:  # before the lease is free: the answer may be lost, and another member leads by then
            await self._stop_leading()
        is_leading = self._leading is not None
        send = partial(self.coordination.heartbeat, is_candidate=is_candidate, is_leading=is_leading)
        beat = asyncio.get_running_loop().run_in_executor(self._threads, send)
        await asyncio.wait({beat}, timeout=max(0.0, self._lease_until_s - began_s) if self._leading else None)
        if not beat.done():
            await self._stop_leading()
        standing: Standing | None = None
        try:
            standing = await beat
        except Unavailable as error:
            if not self._is_failing:
                get_logger().warning("platform.heartbeat_failed", message=error.message)
            self._is_failing = True
        except Displaced:
            self.is_displaced = True
            raise
        else:
            self._is_failing = False
            self._has_others = len(standing.members) > 1
            self._look_for_newer(standing)
            is_mine = standing.leader == self.coordination.member.id
            self._lease_until_s = began_s + LEASE_S if is_mine else 0.0
        if not self.has_lease():
            await self._stop_leading()
        return standing

    def _look_for_newer(self, standing: Standing) -> None:
        """Note a newer member; the next heartbeat gives the lease up for it."""
        before, own = self._newer, self.coordination.member
        self._newer = next(filter(own.is_outdated_by, standing.members), None)
        self.is_outdated = self._newer is not None and self._newer.url != own.url
        if self._newer is not None and before is None:
            get_logger().warning("platform.outdated", newer_version=self._newer.version, newer_url=self._newer.url)

    async def _pause(self) -> None:
        """Wait for the next heartbeat, or for the end of the lease; raise the error of the leader's loops."""
        if self._leading is None:
            await asyncio.sleep(self.heartbeat_s)
            return
        lease_s = max(0.0, self._lease_until_s - self.clock())
        await asyncio.wait({self._leading}, timeout=min(self.heartbeat_s, lease_s))
        if self._leading.done():
            leading, self._leading = self._leading, None
            await leading

    async def _lead(self, lead: Lead, term: int) -> None:
        try:
            await lead(term)
        except Fenced as error:
            get_logger().warning("platform.fenced", reason=str(error))

    async def _stop_leading(self) -> None:
        leading, self._leading = self._leading, None
        if leading is None:
            return
        get_logger().info("platform.leads_no_more")
        leading.cancel()
        await asyncio.wait({leading})
        if not leading.cancelled() and (error := leading.exception()) is not None:
            raise error


_RETRY_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class Leading:
    """
    The loops of the leader, which act on the records.

    There is one object for each term, with a store that fences its writes.
    """

    store: Store
    series: BufferedSeries
    launcher: Launcher
    logs: PlatformLogs
    gateway: Gateway
    batches: BatchGateway
    sampler: Sampler
    defaults: WorkerDefaults
    aws_scope: AwsScope
    objects: Objects | None
    transforms: Files
    """The progress of jobs."""
    call: LeaderCall
    """Calls an operation of a service, or of S3, as a client does, in a term of the leader."""
    memory_bytes: int
    """Memory of this host."""
    num_cores: int
    """Cores of this host."""
    is_strict: bool
    address: Callable[[], str]
    """Returns the URL of this platform for programs on its machine."""
    key_environment: Mapping[str, str]
    """Variables by which commands find the access key of this platform."""
    notifications: Notifications
    has_lease: Callable[[], bool] = lambda: True
    """Returns whether the lease is this process's, by its own clock."""
    serverless_idle_s: float = 0.0
    on_change: Callable[[bool], None] = lambda _: None
    """Called with True at the start of a term, and with False at its end."""
    _reconciler: Reconciler | None = None
    _scraper: Scraper | None = None

    @property
    def readings(self) -> Mapping[str, WorkerReading]:
        """Worker → its newest numbers; empty while another platform leads."""
        return {} if self._scraper is None else self._scraper.readings

    def look_at_workers(self) -> None:
        """Reconcile now, because a worker takes no connection; nothing while another platform leads."""
        if self._reconciler is not None:
            self._reconciler.wake_up.end()

    async def run(self, term: int) -> None:
        """Begin a term and run the loops until cancelled. Raises `Fenced`, or the error of a loop that failed."""
        while True:  # until the store can be written: a full disk must not stop the platform
            try:
                await asyncio.to_thread(self.store.begin_term, term)
                break
            except Unavailable as error:
                get_logger().warning("platform.cannot_lead", reason=error.message, retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
        store = self.store.fenced(term)
        self._reconciler = Reconciler(
            store=store,
            launcher=self.launcher,
            logs=self.logs,
            aws_scope=self.aws_scope,
            defaults=self.defaults,
            loads=lambda: self.gateway.loads,
            on_state=self.notifications.endpoint,
        )
        self._scraper = Scraper(store=store, sink=self.series, memory_bytes=self.memory_bytes)
        loops = {
            "reconciler": self._reconciler.run(),
            "autoscaler": Autoscaler(
                store=store,
                series=self.series,
                aws_scope=self.aws_scope,
                is_strict=self.is_strict,
                serverless_idle_s=self.serverless_idle_s,
                on_alarm=self.notifications.alarm,
            ).run(),
            "worker metrics": self._scraper.run(),
            "capacities": CapacityRecorder(store=store, sink=self.series).run(),
            "in-flight sampler": self.sampler.run(),
            "asynchronous invocations": self.gateway.run_async(self.has_lease),
            "batches": self.batches.run(term),
            "jobs": Jobs(store=store, runners=self._job_runners(), files=self.transforms.fenced(term)).run(),
            "inference experiments": Experiments(store=store, aws_scope=self.aws_scope).run(),
            "stacks": StackLoop(store=store, call=partial(self.call, term=term), aws_scope=self.aws_scope).run(),
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

    def _job_runners(self) -> Mapping[AnyKind, JobRunner]:
        return {
            TRANSFORM_JOB: TransformRunner(service=self.gateway.invocations, objects=self.objects),
            OPTIMIZATION_JOB: OptimizationRunner(
                service=self.gateway.invocations, objects=self.objects, logs=self.logs
            ),
            RECOMMENDATIONS_JOB: RecommendationsRunner(
                service=self.gateway.invocations, objects=self.objects, num_cores=self.num_cores, logs=self.logs
            ),
            AI_BENCHMARK_JOB: BenchmarkRunner(
                objects=self.objects, address=self.address, environment=self.key_environment, logs=self.logs
            ),
        }
