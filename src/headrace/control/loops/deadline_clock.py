"""The clock of the reconciler's deadlines: when the wall clock jumps, they begin again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from headrace.control.model.names import new_instance_id
from headrace.control.planning.config import CLOCK_JUMP_S, PassContext, ReconcilerConfig
from headrace.core.telemetry import get_logger
from headrace.wire.aws.scope import AwsScope


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
