"""A mixed load: each activity runs in a thread of its own, again and again, with random pauses."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from benchmarks.harness import platforms
from benchmarks.soak.drift import Point

_MAX_FAILURES = 50
_END_S = 600.0
"""Seconds for the activities to end: the slowest one deletes what it has created."""


class Unexpected(Exception):
    """An answer that is not the one that the activity expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Something that clients do now and then."""

    name: str
    pause_s: float
    """Mean of the pauses, which are exponentially distributed."""
    act: Callable[[Random], None]
    """Do it once. Raises any exception if it does not end as it must."""


class Load:
    """Runs activities until it is stopped, and keeps how each of them went."""

    def __init__(self, activities: Sequence[Activity], *, seed: int, pace: float) -> None:
        """Prepare; `pace` divides all pauses."""
        self.failures: list[str] = []
        """The first failures, with the seconds since the start."""
        self.counts: Counter[str] = Counter()
        self.num_failures = 0
        self._latencies: dict[str, list[Point]] = {activity.name: [] for activity in activities}
        self._pace = pace
        self._started_s = time.monotonic()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._repeat, args=(activity, Random(f"{seed} {activity.name}")), daemon=True)
            for activity in activities
        ]

    def start(self) -> None:
        """Start all activities; the times of the load count from here."""
        self._started_s = time.monotonic()
        for thread in self._threads:
            thread.start()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def latencies(self) -> dict[str, list[Point]]:
        """Return for each activity when it started and the seconds that it took."""
        with self._lock:
            return {name: list(points) for name, points in self._latencies.items()}

    def stop(self) -> None:
        """Wait until each activity has ended what it is doing."""
        self._stopping.set()
        deadline_s = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline_s - time.monotonic()))
        if running := [thread for thread in self._threads if thread.is_alive()]:
            self._fail("end", f"{len(running)} activities did not end within {_END_S:.0f} s", self.elapsed_s())

    def _repeat(self, activity: Activity, random: Random) -> None:
        while not self._stopping.wait(random.expovariate(self._pace / activity.pause_s)):
            started_s = self.elapsed_s()
            try:
                activity.act(random)
            except Exception as error:  # noqa: BLE001 -- every kind of failure is a result
                self._fail(activity.name, repr(error), started_s)
                continue
            with self._lock:
                self.counts[activity.name] += 1
                self._latencies[activity.name].append((started_s, self.elapsed_s() - started_s))

    def _fail(self, name: str, reason: str, started_s: float) -> None:
        with self._lock:
            self.num_failures += 1
            if len(self.failures) < _MAX_FAILURES:
                self.failures.append(f"{started_s:.1f} s {name}: {reason[:600]}")


until = partial(platforms.until, timeout_s=300.0, poll_s=0.25)
"""Wait for a condition on a machine that other programs use, too."""
