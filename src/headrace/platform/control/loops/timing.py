"""
The reconciler's time: the clock of its deadlines, which begin again when the wall clock jumps, and its pauses.

A worker that becomes ready ends the pause: requests held for the worker do not wait for the next pass. Only `/ping` of
starting workers is called; the next pass decides. The longer a start takes, the less often the worker is pinged: after
a few seconds the reconciler's own passes are frequent enough.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.core.telemetry import get_logger
from headrace.platform.cluster.launcher import WorkerPhase
from headrace.platform.cluster.worker_ping import ping
from headrace.platform.control.model.names import new_instance_id
from headrace.platform.control.model.worker import WorkerRecord
from headrace.platform.control.planning.config import CLOCK_JUMP_S, PassContext, ReconcilerConfig
from headrace.serving.wire.aws.scope import AwsScope


@dataclass(frozen=True, slots=True)
class Clocks:
    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds that never jump."""


SYSTEM_CLOCKS: Final = Clocks()


class DeadlineClock:
    """
    Reads the wall clock, and detects its jumps.

    Records have wall-clock times, because they outlive the platform. After a jump forward, or after the machine slept,
    all their deadlines would have passed: a starting worker would count as failed. Time before a jump does not count,
    like the time before the platform's start.
    """

    def __init__(self, config: ReconcilerConfig, clocks: Clocks, *, aws_scope: AwsScope) -> None:
        self._clocks = clocks
        now_s = clocks.wall()
        self._offset_s = now_s - clocks.monotonic()
        self._config = replace(config, awake_since_s=now_s)
        self._aws_scope = aws_scope
        self._log = get_logger()

    def read(self) -> PassContext:
        """Return the values for planning at this time."""
        now_s = self._clocks.wall()
        offset_s = now_s - self._clocks.monotonic()
        jump_s = offset_s - self._offset_s
        if abs(jump_s) > CLOCK_JUMP_S:
            self._offset_s = offset_s
            self._config = replace(self._config, awake_since_s=now_s)
            self._log.warning("clock.jumped", seconds=round(jump_s, 3))
        return PassContext(aws_scope=self._aws_scope, now_s=now_s, config=self._config, new_id=new_instance_id)


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
    url: str
    since_s: float
    """Seconds since 1970."""


def starting_among(workers: Iterable[WorkerRecord]) -> tuple[Starting, ...]:
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
