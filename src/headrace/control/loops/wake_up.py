"""
The pause between two passes of the reconciler, and what ends it early.

A worker that comes up ends it: requests that are held for the worker do not wait for the next pass. Only `/ping` of
starting workers is called; the next pass decides. The longer a start has taken, the less often it is called: after a
few seconds the reconciler's own passes are as good.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cluster.launcher import WorkerPhase
from headrace.cluster.local import ping
from headrace.control.model.worker import WorkerRecord

BUSY_PAUSE_S = 0.2
"""Between two passes while something is in progress."""
WATCH_PAUSE_S = 0.5
"""Between two passes while workers serve and nothing else happens."""
IDLE_PAUSE_S = 10.0
"""Between two passes without workers; a write to the store ends every pause."""
SHORTEST_S = 0.025
"""Shortest time between two pings of starting workers."""
PART = 0.05
"""Part of the time since its start that passes before a worker is pinged again: the most that polling adds."""
EACH_S = 0.002
"""Least time between two pings per starting worker: a hundred of them are pinged five times a second."""
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
        """Start a pass now, or another one after the pass that is running."""
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
