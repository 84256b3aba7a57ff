"""
The pause between two passes of the reconciler, and what ends it early.

A worker that becomes ready ends the pause: requests held for the worker do not wait for the next pass. Only `/ping` of
starting workers is called; the next pass decides. The longer a start takes, the less often the worker is pinged: after
a few seconds the reconciler's own passes are frequent enough.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cluster.launcher import WorkerPhase
from headrace.cluster.local import ping
from headrace.control.model.worker import WorkerRecord

BUSY_PAUSE_S = 0.2
"""Seconds between two passes while something is in progress."""
WATCH_PAUSE_S = 0.5
"""Seconds between two passes while workers serve and nothing else happens."""
IDLE_PAUSE_S = 10.0
"""Seconds between two passes without workers; a write to the store ends every pause."""
SHORTEST_S = 0.025
"""Shortest time between two pings of starting workers."""
PART = 0.05
"""Interval between two pings as a share of the time since a worker's start: the most that polling adds."""
EACH_S = 0.002
"""Minimum seconds between two pings per starting worker: a hundred workers are pinged five times a second."""
_PATIENCE_S = 1.0
"""Timeout of a ping."""


@dataclass(frozen=True, slots=True)
class Starting:
    """A worker that loads its model."""

    url: str
    since_s: float
    """Seconds since 1970."""


def starting_among(workers: Iterable[WorkerRecord]) -> tuple[Starting, ...]:
    """Return the workers that are starting and wanted."""
    return tuple(
        Starting(handle.url, worker.status.phase_since_s or worker.created_s)
        for worker in workers
        if worker.status.phase is WorkerPhase.STARTING
        and worker.deleting_s is None
        and (handle := worker.status.handle) is not None
    )


async def until_one_answers(starting: Sequence[Starting], *, clock: Callable[[], float]) -> None:
    """Return as soon as a worker answers; never if there are none."""
    while starting:
        youngest_s = clock() - max(worker.since_s for worker in starting)
        await asyncio.sleep(max(SHORTEST_S, PART * youngest_s, EACH_S * len(starting)))
        if any(await asyncio.gather(*(ping(worker.url, _PATIENCE_S) for worker in starting))):
            return
    await asyncio.get_running_loop().create_future()


class WakeUp:
    """The pause between two passes of the reconciler; used by the event loop's thread."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended = asyncio.Event()
        self.starting: Sequence[Starting] = ()
        """Workers that were starting at the last pass: one that answers ends the pause."""

    def end(self) -> None:
        """End the pause now, or run another pass right after the running one."""
        self._ended.set()

    async def wait(self, changed: asyncio.Event, pause_s: float) -> None:
        """Wait until `changed` is set, a worker answers, `end` is called, or `pause_s` is over."""
        waiting: set[asyncio.Future[Any]] = {asyncio.ensure_future(event.wait()) for event in (changed, self._ended)}
        if self.starting:
            waiting.add(asyncio.ensure_future(until_one_answers(self.starting, clock=self._clock)))
        try:
            await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            self._ended.clear()
