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

from headrace.cluster.launcher import Handle, Launcher
from headrace.control.loops import store_access
from headrace.control.loops.adapter_loader import AdapterLoader
from headrace.control.loops.deadline_clock import SYSTEM_CLOCKS, Clocks, DeadlineClock
from headrace.control.loops.endpoint_pass import EndpointPass
from headrace.control.loops.failure_log import FailureLog
from headrace.control.loops.garbage_collection import GarbageCollector
from headrace.control.loops.store_access import Snapshot
from headrace.control.loops.wake_up import BUSY_PAUSE_S, IDLE_PAUSE_S, WATCH_PAUSE_S, WakeUp, starting_among
from headrace.control.loops.worker_manager import WorkerManager
from headrace.control.model.endpoint import EndpointRecord
from headrace.control.model.log_reader import LogKeeper
from headrace.control.model.worker import WorkerRecord
from headrace.control.planning.config import ReconcilerConfig
from headrace.control.planning.worker_build import WorkerDefaults
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, Unreadable
from headrace.state.signals import ReadLoads
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope

_BURST_S = 0.02
"""Writes within this time are handled by one pass."""


class Reconciler:
    """A task that reconciles all endpoints; `run` until cancelled. Workers keep running after that."""

    def __init__(
        self,
        *,
        store: Store,
        launcher: Launcher,
        logs: LogKeeper,
        aws_scope: AwsScope,
        defaults: WorkerDefaults,
        config: ReconcilerConfig | None = None,
        loads: ReadLoads = dict,
        clocks: Clocks = SYSTEM_CLOCKS,
    ) -> None:
        """
        Create the reconciler; nothing happens before `run`.

        Args:
            store: holds the desired and the observed state.
            launcher: starts and stops workers.
            logs: give the reasons of failures, and outlive their workers.
            aws_scope: account and region.
            defaults: settings of all workers.
            config: time limits.
            loads: in-flight requests by worker; workers without any may be left out.
            clocks: the wall clock, and one that never jumps.
        """
        config = config or ReconcilerConfig()
        clock, deadline_clock = clocks.wall, DeadlineClock(config, clocks)
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
        self._garbage = GarbageCollector(store, self._workers, clock=deadline_clock)
        self._failures = FailureLog()
        self._endpoints = EndpointPass(
            store,
            self._workers,
            self._garbage,
            self._failures,
            aws_scope=aws_scope,
            loads=loads,
            clock=deadline_clock,
        )
        self.wake_up = WakeUp(clock=clock)
        """Ends the pause between two passes."""
        self._log = get_logger()

    async def run(self) -> None:
        """Reconcile until cancelled."""
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
        alive = await self._garbage.alive_if_due(snapshot)
        snapshot = await self._look(snapshot, alive)
        self.wake_up.starting = starting_among(snapshot.readable_workers())
        workers = snapshot.workers_by_endpoint()
        endpoints = {record.uid: record for record in snapshot.endpoints}
        pauses = await asyncio.gather(
            *(self._guarded(record, workers.get(uid, []), snapshot) for uid, record in endpoints.items())
        )
        for uid, orphans in workers.items():
            if uid not in endpoints:
                pauses.append(await self._garbage.end_workers(orphans))
        await self._garbage.drop_components(snapshot)
        await self._garbage.drop_routes(snapshot)
        if alive is not None:
            pauses.append(await self._garbage.end_processes(alive, snapshot))
        return min(pauses, default=IDLE_PAUSE_S)

    async def _look(self, snapshot: Snapshot, alive: dict[str, Handle] | None) -> Snapshot:
        """Return the snapshot with the workers as they are observed now."""

        async def look(record: WorkerRecord | Unreadable) -> WorkerRecord | Unreadable | None:
            if isinstance(record, Unreadable):
                if record.is_newer:
                    return record
                await self._drop_worker(record)
                return None
            with suppress(Conflict):
                if alive is not None:
                    record = await self._workers.adopt(record, alive)
                return await self._workers.observe(record)
            return record

        seen = await asyncio.gather(*(look(record) for record in snapshot.workers))
        return replace(snapshot, workers=[record for record in seen if record is not None])

    async def _drop_worker(self, record: Unreadable) -> None:
        """Remove a worker whose record cannot be read; its process becomes an orphan, and another one replaces it."""
        self._log.error("worker.unreadable", worker=record.name, why=record.reason)
        self._garbage.sweep_soon()
        with suppress(Conflict):
            await store_access.remove(self._store, record)

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
