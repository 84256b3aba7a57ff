"""The reconciler's search for processes that no record knows, and for records whose process it was not told of."""

from collections.abc import Callable

from headrace.cluster.launcher import Handle
from headrace.control.loops.store_access import Snapshot
from headrace.control.loops.wake_up import IDLE_PAUSE_S, WATCH_PAUSE_S
from headrace.control.loops.worker_manager import WorkerHands
from headrace.core.telemetry import get_logger

SWEEP_S = 30.0
"""Between two searches."""


class Sweep:
    """One search after the other."""

    def __init__(self, hands: WorkerHands, *, clock: Callable[[], float]) -> None:
        self._hands = hands
        self._clock = clock
        self._swept_s: float | None = None
        self._orphans: dict[str, Handle] = {}
        self._log = get_logger()

    def soon(self) -> None:
        """Search in the next pass."""
        self._swept_s = None

    async def alive_if_due(self, snapshot: Snapshot) -> dict[str, Handle] | None:
        """The launcher's own list: at the start, now and again, and where a worker's record has no process yet."""
        now_s = self._clock()
        is_recent = self._swept_s is not None and now_s - self._swept_s < SWEEP_S
        if is_recent and all(record.status for record in snapshot.workers):
            return None
        self._swept_s = now_s
        try:
            return await self._hands.alive()
        except Exception:  # noqa: BLE001 -- an edge: logged, and tried again
            self._log.exception("reconciler.sweep_failed")
            return None

    async def end_strangers(self, alive: dict[str, Handle], snapshot: Snapshot) -> float:
        """End processes that no record knows."""
        recorded = {record.name for record in snapshot.workers}
        for name, handle in alive.items():
            if name not in recorded and name not in self._orphans:
                self._log.warning("worker.orphaned", worker=name)
                self._orphans[name] = handle
        for name, handle in list(self._orphans.items()):
            if await self._hands.end_orphan(name, handle):
                del self._orphans[name]
        if not self._orphans:
            return IDLE_PAUSE_S
        self.soon()
        return WATCH_PAUSE_S
