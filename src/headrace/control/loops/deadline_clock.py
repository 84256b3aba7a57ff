"""The clock of the reconciler's deadlines: when the wall clock jumps, they begin again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from headrace.control.planning.config import CLOCK_JUMP_S, ReconcilerConfig
from headrace.core.telemetry import get_logger


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a process."""

    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds that never jump."""


SYSTEM_CLOCKS: Final = Clocks()


class DeadlineClock:
    """
    Reads the wall clock, and notices when it jumps.

    Records have times of the wall clock, because they outlive the platform. A jump forward, or a machine that slept,
    would make their deadlines pass at once: a worker that starts would have failed. Like the time before the start of
    the platform, the time before a jump does not count.
    """

    def __init__(self, config: ReconcilerConfig, clocks: Clocks) -> None:
        """Start to watch."""
        self._clocks = clocks
        now_s = clocks.wall()
        self._offset_s = now_s - clocks.monotonic()
        self._config = replace(config, awake_since_s=now_s)
        self._log = get_logger()

    def read(self) -> tuple[float, ReconcilerConfig]:
        """Return the time, seconds since 1970, and the configuration for planning at this time."""
        now_s = self._clocks.wall()
        offset_s = now_s - self._clocks.monotonic()
        jump_s = offset_s - self._offset_s
        if abs(jump_s) > CLOCK_JUMP_S:
            self._offset_s = offset_s
            self._config = replace(self._config, awake_since_s=now_s)
            self._log.warning("clock.jumped", seconds=round(jump_s, 3))
        return now_s, self._config
