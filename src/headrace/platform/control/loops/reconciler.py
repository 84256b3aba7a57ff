"""
The reconciler: it makes the observed state follow the desired one. It reads the store, plans, records and acts.

Level-triggered: a pass decides by the current state, not by events, so that it may be interrupted anywhere and start
again, even after kill -9 of the platform.

The reconciler answers no requests. It is the only owner of endpoint statuses, workers and routes.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import Handle, Launcher, WorkerPhase
from headrace.platform.cluster.platform_logs import PlatformLogs
from headrace.platform.control.loops import store_access
from headrace.platform.control.loops.adapter_loader import AdapterLoader
from headrace.platform.control.loops.endpoint_pass import EndpointPass, FailureLog, OnState
from headrace.platform.control.loops.store_access import Snapshot
from headrace.platform.control.loops.timing import (
    BUSY_PAUSE_S,
    IDLE_PAUSE_S,
    SYSTEM_CLOCKS,
    WATCH_PAUSE_S,
    Clocks,
    DeadlineClock,
    WakeUp,
    starting_among,
)
from headrace.platform.control.loops.worker_manager import WorkerManager
from headrace.platform.control.model.component import owner_of
from headrace.platform.control.model.endpoint import EndpointRecord
from headrace.platform.control.model.worker import ReplicaStatus, WorkerRecord
from headrace.platform.control.planning.config import ReconcilerConfig
from headrace.platform.control.planning.worker_build import WorkerDefaults
from headrace.platform.state.records import Conflict, StoredRecord, Unreadable
from headrace.platform.state.routes import ReadLoads
from headrace.platform.state.store import Store
from headrace.serving.wire.aws.scope import AwsScope

_BURST_S = 0.02
"""Writes within this time are handled by one pass."""
SWEEP_S = 30.0
"""Seconds between two comparisons of processes and records."""


class Reconciler:
    """A task that reconciles all endpoints; `run` until cancelled. Workers keep running after that."""

    def __init__(  # noqa: PLR0913 -- the parts that it works with
        self,
        *,
        store: Store,
        launcher: Launcher,
        logs: PlatformLogs,
        aws_scope: AwsScope,
        defaults: WorkerDefaults,
        config: ReconcilerConfig | None = None,
        loads: ReadLoads = dict,
        clocks: Clocks = SYSTEM_CLOCKS,
        on_state: OnState = lambda *_: None,
    ) -> None:
        """Create the reconciler; nothing happens before `run`. Workers without requests may be left out of `loads`."""
        config = config or ReconcilerConfig()
        clock = clocks.wall
        self._clock = DeadlineClock(config, clocks, aws_scope=aws_scope)
        self._store = store
        self.adapters = AdapterLoader(store, grants=defaults.grants, clock=clock)
        """The calls that load and unload adapters."""
        self._workers = WorkerManager(
            store=store,
            launcher=launcher,
            logs=logs,
            adapters=self.adapters,
            defaults=defaults,
            config=config,
            clock=clock,
        )
        self._failures = FailureLog()
        self._endpoints = EndpointPass(store, self._workers, self._failures, loads, self._clock, on_state)
        self._swept_s: float | None = None
        """Time of the last comparison of processes and records; None: the next one is due now."""
        self._orphans: dict[str, Handle] = {}
        """Processes without a record, by worker."""
        self.wake_up = WakeUp(clock=clock)
        """Ends the pause between two passes."""

    async def run(self) -> None:
        try:
            with store_access.changes(self._store) as changed:
                await self._run(changed)
        finally:
            await self.adapters.close()

    async def _run(self, changed: asyncio.Event) -> None:
        while True:
            changed.clear()
            try:
                pause_s = await self.pass_once()
                self._failures.clear(None)
            except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
                self._failures.note(None, error)
                pause_s = WATCH_PAUSE_S
            await self.wake_up.wait(changed, pause_s)
            await asyncio.sleep(_BURST_S)

    async def pass_once(self) -> float:
        """Read, plan, act and record once for everything; return the seconds until the next pass."""
        snapshot = await store_access.read_all(self._store)
        # See what the workers do before anything is planned: their records follow their processes.
        alive = await self._alive_if_due(snapshot)
        snapshot = await self._look(snapshot, alive)
        self.wake_up.starting = starting_among(snapshot.readable_workers())
        # Endpoints are independent: a slow or failing one does not delay the others.
        workers = store_access.grouped(snapshot.readable_workers(), lambda worker: worker.spec.endpoint_uid)
        endpoints = {record.uid: record for record in snapshot.endpoints}
        pauses = await asyncio.gather(
            *(self._guarded(record, workers.pop(uid, []), snapshot) for uid, record in endpoints.items())
        )
        # Garbage: workers, components, routes and processes whose owner is gone.
        pauses += [await self._endpoints.end_workers(orphans) for orphans in workers.values()]
        await self._drop_orphaned_records(snapshot)
        if alive is not None:
            pauses.append(await self._end_processes(alive, snapshot))
            await self._workers.drop_prefix_caches({record.uid for record in snapshot.endpoints})
        return min(pauses, default=IDLE_PAUSE_S)

    async def _look(self, snapshot: Snapshot, alive: dict[str, Handle] | None) -> Snapshot:
        """Return the snapshot with the workers as they are observed now."""

        async def look(record: WorkerRecord | Unreadable) -> WorkerRecord | Unreadable | None:
            if isinstance(record, Unreadable):
                if record.is_newer:
                    return record
                # Its process becomes an orphan, which the next comparison finds, and another worker replaces it.
                get_logger().error("worker.unreadable", worker=record.name, why=record.reason)
                self._swept_s = None
                with suppress(Conflict):
                    await store_access.remove(self._store, record)
                return None
            with suppress(Conflict):
                if alive is not None:
                    record = await self._workers.adopt(record, alive)
                return await self._workers.observe(record)
            return record

        seen = await asyncio.gather(*(look(record) for record in snapshot.workers))
        return replace(snapshot, workers=[record for record in seen if record is not None])

    async def _guarded(
        self, record: EndpointRecord | Unreadable, workers: Sequence[WorkerRecord], snapshot: Snapshot
    ) -> float:
        """Reconcile one endpoint; a failure is retried and does not delay the others."""
        try:
            pause_s = await self._endpoints.run(record, workers, snapshot)
        except Conflict:
            return BUSY_PAUSE_S
        except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
            self._failures.note(record, error)
            return WATCH_PAUSE_S
        if not isinstance(record, Unreadable):
            self._failures.clear(record)
        return pause_s

    async def _drop_orphaned_records(self, snapshot: Snapshot) -> None:
        """Remove components and routes whose endpoint is gone; the copies of the components become orphans."""
        uids = {record.uid for record in snapshot.endpoints}
        names = {record.name for record in snapshot.endpoints}
        orphans: list[StoredRecord] = [route for name, route in snapshot.routes.items() if name not in names]
        for component in snapshot.components:
            owner = owner_of(component)
            if component.deleting_s is not None if owner is None else owner.endpoint_uid not in uids:
                orphans.append(component)
        for record in orphans:
            with suppress(Conflict):
                await store_access.remove(self._store, record)

    async def _alive_if_due(self, snapshot: Snapshot) -> dict[str, Handle] | None:
        """
        Return the launcher's own list of workers, or None while the next comparison is not due.

        It is due every `SWEEP_S` seconds, and while a worker has a record but no process yet.
        """
        now_s = self._clock.read().now_s
        is_recent = self._swept_s is not None and now_s - self._swept_s < SWEEP_S
        if is_recent and all(worker.status != ReplicaStatus() for worker in snapshot.readable_workers()):
            return None
        self._swept_s = now_s
        try:
            return await self._workers.alive()
        except TimeoutError as error:  # a cluster that is out of reach says why
            get_logger().warning(
                "reconciler.sweep_failed", message=str(error) or "The launcher did not answer in time."
            )
            return None
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            get_logger().exception("reconciler.sweep_failed")
            return None

    def _had_exited(self, record: WorkerRecord | Unreadable) -> bool:
        """Return whether a worker exited, as far as its record says, before the processes were listed."""
        if isinstance(record, Unreadable) or record.status.phase is not WorkerPhase.EXITED or self._swept_s is None:
            return False
        since_s = record.status.phase_since_s
        return since_s is not None and since_s < self._swept_s

    async def _end_processes(self, alive: dict[str, Handle], snapshot: Snapshot) -> float:
        """
        End processes without a record, or that had exited by their record: their machine was lost, and is back.

        Returns the seconds until the next pass.
        """
        recorded = {record.name for record in snapshot.workers if not self._had_exited(record)}
        for name, handle in alive.items():
            if name not in recorded and name not in self._orphans:
                get_logger().warning("worker.orphaned", worker=name)
                self._orphans[name] = handle
        for name, handle in list(self._orphans.items()):
            if await self._workers.end_orphan(name, handle):
                del self._orphans[name]
        if not self._orphans:
            return IDLE_PAUSE_S
        self._swept_s = None
        return WATCH_PAUSE_S
