"""Garbage collection: what is left of endpoints that are gone, and processes without a record."""

from collections.abc import Sequence
from contextlib import suppress

from headrace.cluster.launcher import Handle
from headrace.control.loops import store_access
from headrace.control.loops.deadline_clock import DeadlineClock
from headrace.control.loops.store_access import Snapshot
from headrace.control.loops.wake_up import BUSY_PAUSE_S, IDLE_PAUSE_S, WATCH_PAUSE_S
from headrace.control.loops.worker_manager import WorkerManager, WorkerSet
from headrace.control.model.component import owner_of
from headrace.control.model.worker import ReplicaStatus, WorkerRecord, view_worker
from headrace.control.planning.plan import plan_orphans
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict
from headrace.state.store import Store

SWEEP_S = 30.0
"""Seconds between two comparisons of processes and records."""


class GarbageCollector:
    """Ends workers and removes records whose owner is gone."""

    def __init__(self, store: Store, workers: WorkerManager, *, clock: DeadlineClock) -> None:
        self._store = store
        self._workers = workers
        self._clock = clock
        self._swept_s: float | None = None
        self._orphans: dict[str, Handle] = {}
        self._log = get_logger()

    async def end_workers(self, workers: Sequence[WorkerRecord]) -> float:
        """End workers whose endpoint or component is gone; return the seconds until the next pass."""
        orphans = WorkerSet(records={worker.name: worker for worker in workers})
        seen = [view_worker(worker) for worker in workers]
        now_s, config = self._clock.read()
        try:
            for action in plan_orphans(seen, now_s=now_s, config=config):
                await self._workers.act(orphans, action)
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            self._log.exception("reconciler.orphan_failed", workers=sorted(orphans.records))
        return BUSY_PAUSE_S

    async def drop_components(self, snapshot: Snapshot) -> None:
        """Remove components whose endpoint is gone; their copies become orphans."""
        living = {record.uid for record in snapshot.endpoints}
        for component in snapshot.components:
            owner = owner_of(component)
            is_orphan = component.deleting_s is not None if owner is None else owner.endpoint_uid not in living
            if is_orphan:
                with suppress(Conflict):
                    await store_access.remove(self._store, component)

    async def drop_routes(self, snapshot: Snapshot) -> None:
        """Remove routes of endpoints that are gone."""
        living = {record.name for record in snapshot.endpoints}
        for name, route in snapshot.routes.items():
            if name not in living:
                with suppress(Conflict):
                    await store_access.remove(self._store, route)

    def sweep_soon(self) -> None:
        """Compare processes and records in the next pass."""
        self._swept_s = None

    async def alive_if_due(self, snapshot: Snapshot) -> dict[str, Handle] | None:
        """
        Return the launcher's own list of workers, or None while the next comparison is not due.

        It is due every `SWEEP_S` seconds, and while a worker has a record but no process yet.
        """
        now_s, _ = self._clock.read()
        is_recent = self._swept_s is not None and now_s - self._swept_s < SWEEP_S
        if is_recent and all(worker.status != ReplicaStatus() for worker in snapshot.readable_workers()):
            return None
        self._swept_s = now_s
        try:
            return await self._workers.alive()
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            self._log.exception("reconciler.sweep_failed")
            return None

    async def end_processes(self, alive: dict[str, Handle], snapshot: Snapshot) -> float:
        """End processes without a record; return the seconds until the next pass."""
        recorded = {record.name for record in snapshot.workers}
        for name, handle in alive.items():
            if name not in recorded and name not in self._orphans:
                self._log.warning("worker.orphaned", worker=name)
                self._orphans[name] = handle
        for name, handle in list(self._orphans.items()):
            if await self._workers.end_orphan(name, handle):
                del self._orphans[name]
        if not self._orphans:
            return IDLE_PAUSE_S
        self.sweep_soon()
        return WATCH_PAUSE_S
