"""
The reconciler's rest between two looks, and what ends it early.

One thing is that a worker that starts has come up: requests that are held for it do not wait for the next look. Only
`/ping` is asked, of those that start; the reconciler's next pass decides. The longer one has taken, the less often it
is asked: after a few seconds the reconciler's own looks are as good.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cluster.launcher import WorkerPhase
from headrace.cluster.local import ping
from headrace.control.model.worker_records import handle_of
from headrace.state.records import RawRecord

BUSY_PAUSE_S = 0.2
"""Between two looks while something is under way."""
WATCH_PAUSE_S = 0.5
"""Between two looks at workers that serve."""
IDLE_PAUSE_S = 10.0
"""With nothing to watch; a write to the store ends every pause."""
SHORTEST_S = 0.025
"""Between two questions to workers that start."""
PART = 0.05
"""Of the time that it has taken so far is waited before the next question: so much longer may a start take by us."""
EACH_S = 0.002
"""For each that starts is waited at least: a hundred that start at the same time are asked five times a second."""
_PATIENCE_S = 1.0
"""For one answer."""


@dataclass(frozen=True, slots=True)
class Starting:
    """A worker that loads its model."""

    url: str
    since_s: float
    """Seconds since 1970."""


def starting_among(workers: Iterable[RawRecord]) -> tuple[Starting, ...]:
    """Those of these workers that start and are wanted."""
    return tuple(
        Starting(handle.url, worker.status["phase_since_s"])
        for worker in workers
        if worker.status.get("phase") == WorkerPhase.STARTING.value
        and worker.deleting_s is None
        and (handle := handle_of(worker)) is not None
    )


async def until_one_answers(starting: Sequence[Starting], *, clock: Callable[[], float]) -> None:
    """Return as soon as one of them answers; never if there are none."""
    while starting:
        youngest_s = clock() - max(one.since_s for one in starting)
        await asyncio.sleep(max(SHORTEST_S, PART * youngest_s, EACH_S * len(starting)))
        if any(await asyncio.gather(*(ping(one.url, _PATIENCE_S) for one in starting))):
            return
    await asyncio.get_running_loop().create_future()


class Rest:
    """The pause between two looks of the reconciler; used by the event loop's thread."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended = asyncio.Event()
        self.starting: Sequence[Starting] = ()
        """Workers that were starting at the last look: one that answers ends it."""

    def end(self) -> None:
        """Look now, or again after the look that is under way: somebody has found a worker that does not answer."""
        self._ended.set()

    async def take(self, changed: asyncio.Event, pause_s: float) -> None:
        """Rest until `changed` is set, a worker answers, somebody says so, or `pause_s` is over."""
        waiting: set[asyncio.Future[Any]] = {asyncio.ensure_future(one.wait()) for one in (changed, self._ended)}
        if self.starting:
            waiting.add(asyncio.ensure_future(until_one_answers(self.starting, clock=self._clock)))
        try:
            await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            self._ended.clear()
