"""A thread that starts platforms again that ended without a kill, and tells when all are healthy after a fault."""

import threading
from collections.abc import Callable, Sequence

from benchmarks.harness.platforms import Platform

_TICK_S = 0.05
_MAX_RESTARTS = 5
"""Ends of a platform without a kill after which it is left as it is: it would only end again."""


class Watch:
    """Watches the platforms from `start` to `close`, whatever the run waits for meanwhile."""

    def __init__(self, platforms: Sequence[Platform], incidents: list[str]) -> None:
        self._platforms = platforms
        self._incidents = incidents
        self._restarts = dict.fromkeys(range(len(platforms)), 0)
        self._waiting: list[Callable[[], None]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def when_healthy(self, told: Callable[[], None]) -> None:
        """Call `told` once, when all platforms answer after this moment."""
        self._waiting.append(told)

    def is_calm(self) -> bool:
        """Return whether all that waited for healthy platforms have been told."""
        return not self._waiting

    def close(self) -> None:
        """End; a platform that stops from now on was asked to."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_TICK_S):
            self._restart()
            if (waiting := list(self._waiting)) and all(platform.answers() for platform in self._platforms):
                for told in waiting:
                    told()
                del self._waiting[: len(waiting)]

    def _restart(self) -> None:
        for index, platform in enumerate(self._platforms):
            if self._restarts[index] < _MAX_RESTARTS and (code := platform.restart_if_ended()) is not None:
                self._restarts[index] += 1
                self._incidents.append(f"{platform.name} ended on its own with exit code {code}.")
