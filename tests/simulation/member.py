"""One member of the platform: its real parts, assembled as `headrace up` does, in a simulated process."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headrace.core.errors import Unavailable
from headrace.platform.autoscaling.loops.waker import Waker
from headrace.platform.cloudwatch.series.memory import MemorySeries
from headrace.platform.control.app import ControlApp
from headrace.platform.control.planning.worker_build import WorkerDefaults
from headrace.platform.gateway.app import Gateway
from headrace.platform.gateway.async_files import PendingStore
from headrace.platform.gateway.errors import GatewayConfig
from headrace.platform.gateway.publishing import Publisher, Sampler
from headrace.platform.host.life import end_workers
from headrace.platform.host.membership import Leading, Shared
from headrace.platform.host.notifications import Notifications
from headrace.platform.host.operations import KINDS, OPERATIONS
from headrace.platform.host.peers import ASYNC, QUARANTINE, Peers, Report
from headrace.platform.state.blobs import Blobs
from headrace.platform.state.coordination import Coordination, Member
from headrace.platform.state.store import Store
from headrace.platform.storage.shared_files import SharedFiles
from tests.platform.control.support import AWS_SCOPE, ListedLogs, share_of
from tests.simulation.database import ENGINE, TERM
from tests.simulation.loop import Process
from tests.simulation.objects import Objects
from tests.simulation.scenario import Knobs
from tests.simulation.substitutes import CLOCK
from tests.simulation.workers import Launcher, Machine

HOLD_S = 30.0
"""Longest time for which a request is held, and then for the answer of the model."""
JOIN_RETRY_S = 1.0
SHUTDOWN_GRACE_S = 15.0
"""Longest time for which a member that shuts down waits for the answers to its requests."""
_WORKER_GRACE_S = 10.0
_POLL_S = 0.05
_NO_FOLDER = Path("/simulated")
_NO_BUCKET: Any = None
"""For contents, of which jobs have none."""


@dataclass
class SimulatedMember:
    """The parts of one process of the platform; they live until it is killed."""

    process: Process
    machine: Machine
    series: MemorySeries
    knobs: Knobs
    objects: Objects
    folder: Path
    """The folder of its machine for the progress of jobs, which outlives it."""
    store: Store = field(init=False)
    gateway: Gateway = field(init=False)
    control: ControlApp = field(init=False)
    is_serving: bool = False
    leads_in: int | None = None
    """The term in which it leads now."""
    num_led: int = 0
    """How often it has begun to lead."""
    is_stopping: bool = False
    """It shuts down: it takes no new requests, and those that it holds may end."""
    on_lead: Callable[[], None] = lambda: None
    """Called when it has got the lease."""
    has_left: bool = False
    """It has given its lease up, unless the database was away."""
    num_requests: int = 0
    """Calls and requests of clients that it has not answered."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.store = Store(ENGINE, shown="database", now_s=CLOCK.wall)
        self.blobs = Blobs(ENGINE, shown="database")

    async def run(self) -> None:
        """Join the platform and take part until killed or stopped; runs in the member's process."""
        waker = Waker(self.store, aws_scope=AWS_SCOPE, clock=CLOCK.wall)
        publisher = Publisher(self.series, clock=CLOCK.wall)
        config = GatewayConfig(
            account=AWS_SCOPE.account, region=AWS_SCOPE.region, hold_timeout_s=HOLD_S, invocation_timeout_s=HOLD_S
        )
        self.gateway = Gateway(
            self.store,
            config,
            objects=self.objects,  # type: ignore[arg-type]
            pending=PendingStore(self.blobs, _NO_FOLDER),
            wake=waker.wake,
            publish=publisher.publish,
            draw=self.process.rng.random,
        )
        self.control = ControlApp(
            self.store,
            OPERATIONS,
            aws_scope=AWS_SCOPE,
            logs=ListedLogs(),  # type: ignore[arg-type]
            own_images={},
            is_strict=False,
            series=self.series,
            clock=CLOCK.wall,
        )
        coordination = await self._join()
        await self._started(self.gateway.start)
        leading, peers = self._leading(publisher), self._peers(coordination)

        def on_quarantine() -> None:
            leading.look_at_workers()
            peers.tell(QUARANTINE)

        self.gateway.on_quarantine(on_quarantine)
        peers.on_quarantine = leading.look_at_workers
        self.gateway.on_accepted_for_others(partial(peers.tell, ASYNC))
        shared = Shared(
            coordination, on_standing=peers.set_standing, heartbeat_s=self.knobs.heartbeat_s, clock=CLOCK.monotonic
        )
        leading.has_lease = shared.has_lease
        self.is_serving = True
        reports = asyncio.create_task(peers.run())
        membership = asyncio.create_task(shared.run(partial(self._lead, leading)))
        stopping = asyncio.create_task(self._stop.wait())
        done, _ = await asyncio.wait({reports, membership, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            await task
        shared.resign()
        await self._answer_all()
        await _end(membership)
        has_successor, self.has_left = await shared.leave(), True
        if not has_successor:
            await end_workers(self.store, Launcher(self.machine), grace_s=_WORKER_GRACE_S)
        await _end(reports)
        await asyncio.to_thread(waker.close)
        await self.gateway.close()

    def stop(self) -> None:
        """Shut down in the order of `PlatformLifecycle`, as after SIGTERM."""
        self.is_serving, self.is_stopping = False, True
        self._stop.set()

    async def _answer_all(self) -> None:
        """Wait until all requests have been answered, for as long as the HTTP server would."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_GRACE_S):
                while self.num_requests:
                    await asyncio.sleep(_POLL_S)

    async def _lead(self, leading: Leading, term: int) -> None:
        TERM.set(term)
        self.leads_in = term
        self.num_led += 1
        self.on_lead()
        leading.on_change = self._note_change
        try:
            await asyncio.sleep(0)  # a process that is stopped goes on from here
            await leading.run(term)
        finally:
            self.leads_in = None

    def _note_change(self, is_leading: bool) -> None:
        if not is_leading:  # its loops end, which takes as long as the functions that they are in
            self.leads_in = None

    async def _join(self) -> Coordination:
        member = Member(
            id=self.process.name,
            url=f"http://{self.process.name}",
            host="host",
            data_dir="/",
            version="1",
            forms={name: kind.version for name, kind in KINDS.items()},
        )
        coordination = Coordination("sqlite:///members", member)

        def join() -> None:
            coordination.open(term=self.store.term())

        await self._started(partial(asyncio.to_thread, join))
        return coordination

    @staticmethod
    async def _started(start: Callable[[], Awaitable[Any]]) -> None:
        """Start a part; a platform that cannot reach its database at its start is started again."""
        while True:
            try:
                await start()
            except Unavailable:
                await asyncio.sleep(JOIN_RETRY_S)
            else:
                return

    def _leading(self, publisher: Publisher) -> Leading:
        sampler = Sampler(
            publisher=publisher,
            sink=self.series,
            routes=lambda: self.gateway.routes,
            loads=lambda: self.gateway.loads,
            held=lambda: self.gateway.held,
            clock=CLOCK.wall,
        )
        return Leading(
            store=self.store,
            series=self.series,  # type: ignore[arg-type]
            launcher=Launcher(self.machine),
            logs=ListedLogs(),  # type: ignore[arg-type]
            gateway=self.gateway,
            batches=_NoBatches(),  # type: ignore[arg-type]
            sampler=sampler,
            defaults=WorkerDefaults(share_of=share_of),
            aws_scope=AWS_SCOPE,
            objects=self.objects,
            transforms=SharedFiles(self.folder, "jobs", blobs=self.blobs, bucket=_NO_BUCKET),
            call=self.control.call,
            memory_bytes=1 << 34,
            num_cores=8,
            is_strict=False,
            address=lambda: "",
            key_environment={},
            notifications=Notifications(store=self.store, aws_scope=AWS_SCOPE, url="", clock=CLOCK.wall),
        )

    def _peers(self, coordination: Coordination) -> Peers:
        return Peers(
            coordination=coordination,
            read_own=lambda: Report(workers=self.gateway.own_loads(), held=self.gateway.own_held()),
            on_reports=self.gateway.set_others,
            on_quarantine=lambda: None,
            on_async=self.gateway.look_for_async,
            idle_s=self.knobs.heartbeat_s * 4,
        )


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class _NoBatches:
    """Batches, which the simulation leaves out."""

    async def run(self, *_: object) -> None:
        await asyncio.Event().wait()
