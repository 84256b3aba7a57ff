"""
Makes true what was asked: reads the store, plans, acts, records.

Level-triggered: a pass decides by what is, not by what has happened, so that it may be interrupted anywhere and begin
again, after kill -9 of the platform too.

It answers no request. The only owner of endpoint statuses, workers and routes.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from headrace.cluster.launcher import Handle, Launcher
from headrace.control.loops import store_access
from headrace.control.loops.endpoint_pass import EndpointPass
from headrace.control.loops.failure_log import Faults
from headrace.control.loops.garbage_collection import Leftovers
from headrace.control.loops.store_access import Snapshot
from headrace.control.loops.sweep import Sweep
from headrace.control.loops.wake_up import BUSY_PAUSE_S, IDLE_PAUSE_S, WATCH_PAUSE_S, Rest, starting_among
from headrace.control.loops.worker_manager import WorkerHands
from headrace.control.model.fleet import Limits
from headrace.control.model.log_reader import LogKeeper
from headrace.control.model.reading import UnreadableRecord
from headrace.control.model.worker_reading import unreadable_reason
from headrace.control.planning.worker_specs import WorkerDefaults
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, RawRecord
from headrace.state.signals import ReadLoads
from headrace.state.store import Store
from headrace.wire.aws.scope import AwsScope

_BURST_S = 0.02
"""Writes that come so close together are answered by one pass."""


class Reconciler:
    """One task; `run` until cancelled. Workers run on after that."""

    def __init__(
        self,
        *,
        store: Store,
        launcher: Launcher,
        logs: LogKeeper,
        aws_scope: AwsScope,
        defaults: WorkerDefaults,
        limits: Limits | None = None,
        loads: ReadLoads = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Begin; nothing happens before `run`.

        Args:
            store: what is asked, and where it is written what is.
            launcher: starts and stops workers.
            logs: for the reasons of failures; they outlive their workers.
            aws_scope: account and region.
            defaults: of workers.
            limits: how patient to be.
            loads: worker -> requests that run on it; workers that have none may be left out.
            clock: seconds since 1970.
        """
        limits = replace(limits or Limits(), awake_since_s=clock())
        self._store = store
        self._hands = WorkerHands(
            store=store, launcher=launcher, logs=logs, defaults=defaults, limits=limits, clock=clock
        )
        self._sweep = Sweep(self._hands, clock=clock)
        self._leftovers = Leftovers(store, self._hands, limits=limits, clock=clock)
        self._faults = Faults()
        self._endpoints = EndpointPass(
            store,
            self._hands,
            self._leftovers,
            self._faults,
            aws_scope=aws_scope,
            limits=limits,
            loads=loads,
            clock=clock,
        )
        self.rest = Rest(clock=clock)
        """Between two looks."""
        self._log = get_logger()

    async def run(self) -> None:
        """Reconcile, for ever."""
        with store_access.changes(self._store) as changed:
            while True:
                changed.clear()
                try:
                    pause_s = await self.pass_once()
                    self._faults.clear(None)
                except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
                    self._faults.note(None, error)
                    pause_s = WATCH_PAUSE_S
                await self.rest.take(changed, pause_s)
                await asyncio.sleep(_BURST_S)

    async def pass_once(self) -> float:
        """Read, plan, act and record once for everything; returns after how many seconds to look again."""
        snapshot = await store_access.read_all(self._store)
        alive = await self._sweep.alive_if_due(snapshot)
        snapshot = await self._look(snapshot, alive)
        self.rest.starting = starting_among(snapshot.workers)
        workers = snapshot.workers_by_endpoint()
        endpoints = {record.uid: record for record in snapshot.endpoints}
        pauses = await asyncio.gather(
            *(self._guarded(record, workers.get(uid, []), snapshot) for uid, record in endpoints.items())
        )
        for uid, orphans in workers.items():
            if uid not in endpoints:
                pauses.append(await self._leftovers.end_workers(orphans))
        await self._leftovers.drop_components(snapshot)
        await self._leftovers.drop_routes(snapshot)
        if alive is not None:
            pauses.append(await self._sweep.end_strangers(alive, snapshot))
        return min(pauses, default=IDLE_PAUSE_S)

    async def _look(self, snapshot: Snapshot, alive: dict[str, Handle] | None) -> Snapshot:
        """The same snapshot, with what is seen of the workers now."""

        async def look(record: RawRecord) -> RawRecord | None:
            if why := unreadable_reason(record):
                await self._drop_worker(record, why)
                return None
            with suppress(Conflict):
                if alive is not None:
                    record = await self._hands.adopt(record, alive)
                return await self._hands.observe(record)
            return record

        seen = await asyncio.gather(*(look(record) for record in snapshot.workers))
        return replace(snapshot, workers=[record for record in seen if record is not None])

    async def _drop_worker(self, record: RawRecord, why: str) -> None:
        """Forget a worker whose record cannot be read; its process is an orphan then."""
        self._log.error("worker.unreadable", worker=record.name, why=why)
        self._sweep.soon()
        with suppress(Conflict):
            await store_access.remove(self._store, record)

    async def _guarded(self, record: RawRecord, workers: Sequence[RawRecord], snapshot: Snapshot) -> float:
        """One endpoint; what goes wrong with it is its own matter, and is tried again."""
        try:
            pause_s = await self._endpoints.run(record, workers, snapshot)
        except Conflict:
            return BUSY_PAUSE_S
        except UnreadableRecord as error:
            self._faults.note(record, error)
            return await self._endpoints.run_deletions(record, workers, snapshot)
        except Exception as error:  # noqa: BLE001 -- an edge: logged, and tried again
            self._faults.note(record, error)
            return WATCH_PAUSE_S
        self._faults.clear(record)
        return pause_s
