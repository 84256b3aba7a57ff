"""What is left of endpoints that are gone: their workers end, their components and routes are forgotten."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.control.loops import store_access
from headrace.control.loops.store_access import Snapshot
from headrace.control.loops.wake_up import BUSY_PAUSE_S
from headrace.control.loops.worker_manager import Bench, WorkerHands
from headrace.control.model.fleet import Limits
from headrace.control.model.worker_records import view_worker
from headrace.control.planning.plan import plan_orphans
from headrace.core.telemetry import get_logger
from headrace.state.records import Conflict, RawRecord
from headrace.state.store import Store


class Leftovers:
    """Put away by the reconciler."""

    def __init__(self, store: Store, hands: WorkerHands, *, limits: Limits, clock: Callable[[], float]) -> None:
        self._store = store
        self._hands = hands
        self._limits = limits
        self._clock = clock
        self._log = get_logger()

    async def end_workers(self, workers: Sequence[RawRecord]) -> float:
        """Workers whose endpoint, or component, is gone; returns after how many seconds to look again."""
        bench = Bench(records={worker.name: worker for worker in workers})
        seen = [view_worker(worker) for worker in workers]
        try:
            for action in plan_orphans(seen, now_s=self._clock(), limits=self._limits):
                await self._hands.act(bench, action)
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            self._log.exception("reconciler.orphan_failed", workers=sorted(bench.records))
        return BUSY_PAUSE_S

    async def drop_components(self, snapshot: Snapshot) -> None:
        """Components whose endpoint is gone; their copies are orphans."""
        living = {record.uid for record in snapshot.endpoints}
        for component in snapshot.components:
            uid = component.spec.get("endpoint_uid")
            if uid not in living and (uid is not None or component.deleting_s is not None):
                with suppress(Conflict):
                    await store_access.remove(self._store, component)

    async def drop_routes(self, snapshot: Snapshot) -> None:
        """Routes of endpoints that are gone."""
        living = {record.name for record in snapshot.endpoints}
        for name, route in snapshot.routes.items():
            if name not in living:
                with suppress(Conflict):
                    await store_access.remove(self._store, route)
