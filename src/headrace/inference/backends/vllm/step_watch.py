"""
The limit on the time that a step of vLLM takes: vLLM's own health is a flag, which a step that hangs does not change.

vLLM reports each step that ends, also one that only computes a part of a prompt. So requests that wait behind long ones
raise no alarm, but missing reports do.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_CHECKS: Final = 10
"""Number of checks within the time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The time without the end of a step while there were requests, up to the last check."""

    seconds: float = 0.0
    seen_s: float = 0.0
    """The time of the last check."""
    num_reports: int = 0
    is_busy: bool = False
    """True if there were requests from then on."""

    def until(self, now_s: float, *, num_reports: int, is_busy: bool, most_s: float) -> "Silence":
        """
        Return the silence as of a later check, with the steps that have ended and whether there are requests then.

        At most `most_s` count for one check: between two checks this process and vLLM's may have been stopped, as on a
        machine that sleeps.
        """
        if num_reports != self.num_reports:
            seconds = 0.0
        elif self.is_busy:
            seconds = self.seconds + min(now_s - self.seen_s, most_s)
        else:
            # Kept: clients that give up earlier than the limit must not hide a step that hangs.
            seconds = self.seconds
        return Silence(seconds=seconds, seen_s=now_s, num_reports=num_reports, is_busy=is_busy)


class StepWatch:
    """Calls `on_hang` once, when no step has ended for `limit_s` while there were requests. On the event loop only."""

    def __init__(
        self,
        limit_s: float,
        *,
        num_reports: Callable[[], int],
        on_hang: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._limit_s = limit_s
        self._interval_s = limit_s / _CHECKS
        self._num_reports = num_reports
        self._on_hang = on_hang
        self._loop = loop
        self._silence = Silence(num_reports=num_reports())
        self._timer: asyncio.TimerHandle | None = None

    def note(self, *, is_busy: bool) -> None:
        """Note whether there are requests from now on; no timer runs while there are none."""
        if is_busy == self._silence.is_busy:
            return
        self._look(is_busy=is_busy)
        if is_busy:
            self._wait()
        elif self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        left_s = self._limit_s - self._silence.seconds
        self._timer = self._loop.call_later(max(0.0, min(left_s, self._interval_s)), self._check)

    def _check(self) -> None:
        self._look(is_busy=True)
        if self._silence.seconds >= self._limit_s:
            self._on_hang()
        else:
            self._wait()

    def _look(self, *, is_busy: bool) -> None:
        self._silence = self._silence.until(
            self._loop.time(),
            num_reports=self._num_reports(),
            is_busy=is_busy,
            most_s=self._interval_s,
        )
