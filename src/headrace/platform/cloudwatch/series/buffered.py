"""
Series that are buffered in memory and flushed every few seconds into a file or a database.

kill -9 loses those few seconds. Stored series matter less than a running platform: while they cannot be written,
measurements stay in memory, within bounds.
"""

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.core.telemetry import get_logger
from headrace.platform.cloudwatch.metrics.metric import TIERS, Metric, Point, Tier, resample, tier_of, whole_period
from headrace.platform.cloudwatch.series.memory import MemorySeries, SeriesData

FLUSH_S: Final = 5.0
"""Seconds between flushes: the most that kill -9 loses."""
PRUNE_S: Final = 600.0
"""Seconds between prunings of expired points."""
_SHRINK: Final = 0.8
"""Factor on the retention at each pruning that finds the series too large; undone where there is room again."""
_MIN_POINTS: Final = 360
"""Points of each tier that a series keeps however large all are; alarms read fewer."""


class BufferedSeries(ABC):
    """A thread-safe `SeriesStore` over a store of points. Reading waits for the store; measuring never does."""

    def __init__(self, *, max_bytes: int, max_series: int, clock: Callable[[], float]) -> None:
        """Buffer for a store with about `max_bytes`, above which the retention is shortened."""
        self._max_bytes = max_bytes
        self._max_series = max_series
        self._clock = clock
        self._new = MemorySeries(max_series=max_series)
        """Measurements since the last flush."""
        self._lock = threading.Lock()
        self._share = 1.0
        """Share of CloudWatch's retention that the store has room for."""
        self._pruned_s = -math.inf
        self._fault = ""
        self._is_full = False
        """True once a new metric has been refused since the last pruning."""

    def put(self, metric: Metric, value: float, *, now_s: float, count: float = 1.0, unit: str = "None") -> None:
        self._new.put(metric, value, now_s=now_s, count=count, unit=unit)

    def put_point(self, metric: Metric, point: Point) -> None:
        self._new.put_point(metric, point)

    def read(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """Return the points of [start_s, end_s), oldest first; the first is the one that contains `start_s`."""
        period_s = whole_period(period_s)
        tier_s = TIERS[tier_of(period_s)].period_s
        begin_s = start_s // period_s * period_s

        # Under one lock: a flush between the two would move measurements from one to the other, unseen or seen twice.
        with self._lock:
            old = self._stored(metric, tier_s, int(begin_s // tier_s), math.ceil(end_s / tier_s))
            new = self._new.read(metric, start_s=begin_s, end_s=end_s, period_s=tier_s)
        return resample([*old, *new], period_s=period_s)

    def list(
        self, *, namespace: str | None = None, name: str | None = None, since_s: float = -math.inf
    ) -> Sequence[Metric]:
        with self._lock:
            old = self._stored_metrics(namespace, name, since_s)
            new = self._new.list(namespace=namespace, name=name, since_s=since_s)
        return sorted({*old, *new}, key=lambda metric: (metric.namespace, metric.name, metric.dimensions))

    async def run(self) -> None:
        """Flush every few seconds until cancelled; `close` flushes the rest."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await asyncio.to_thread(self.flush)
            except Exception:  # noqa: BLE001 -- an edge: no bug in here may stop the platform
                get_logger().exception("metrics.crashed")

    def flush(self) -> None:
        with self._lock:
            taken, is_written = self._new.take(), False
            try:
                is_written = not taken or self._write(taken)
            finally:
                if not is_written:  # on a full disk, measurements stay in memory until a later flush
                    self._new.give_back(taken)
            if self._clock() - self._pruned_s >= PRUNE_S:
                self._pruned_s = self._clock()
                self._is_full = False
                self._prune()

    def close(self) -> None:
        """Flush and close the store; later measurements stay in memory."""
        self.flush()
        with self._lock:
            self._disconnect()

    # The methods of a store are called under the lock. They log that it fails, and raise nothing for it.

    @abstractmethod
    def _stored(self, metric: Metric, period_s: int, first: int, end: int) -> Sequence[Point]:
        """Return the stored points of a tier whose numbers are in [first, end); none if they cannot be read."""

    @abstractmethod
    def _stored_metrics(self, namespace: str | None, name: str | None, since_s: float) -> Sequence[Metric]:
        """Return the stored metrics that were measured since a time; none if they cannot be read."""

    @abstractmethod
    def _write(self, taken: Mapping[Metric, SeriesData]) -> bool:
        """Merge points into the stored ones, all or nothing; return whether they are stored."""

    @abstractmethod
    def _prune(self) -> None:
        """Delete expired points, and adapt the retention to the size."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the store; the next use opens it again."""

    def _note(self, where: str, fault: str) -> None:
        """Log a fault once until it changes; an empty one is none."""
        if fault and fault != self._fault:
            get_logger().error("metrics.file_failed", path=where, reason=fault)
        self._fault = fault

    def _note_full(self, where: str, num_series: int) -> None:
        if not self._is_full:
            self._is_full = True
            reason = f"there are {num_series} metrics already, the maximum; new ones are dropped"
            get_logger().error("metrics.file_failed", path=where, reason=reason)

    def _adapt_to(self, num_bytes: float) -> None:
        """Shorten the retention if the stored points are too large, and lengthen it if there is room."""
        if num_bytes > self._max_bytes:
            self._share *= _SHRINK
        elif num_bytes < self._max_bytes / 2:
            self._share = min(1.0, self._share / _SHRINK)

    def _kept_s(self, tier: Tier) -> float:
        return max(tier.kept_s * self._share, min(tier.kept_s, tier.period_s * _MIN_POINTS))


def packed_values(values: Sequence[tuple[float, float]]) -> bytes:
    """Return the values of a point with their counts, as they are stored."""
    return array("d", [number for pair in values for number in pair]).tobytes()


def stored_point(row: Sequence[Any], period_s: int, unit: str) -> Point:
    """Return a point by its number, count, total, minimum, maximum and packed values."""
    number, count, total, minimum, maximum, measured = row
    flat = array("d")
    flat.frombytes(measured[: len(measured) // 16 * 16])
    return Point(
        start_s=number * period_s,
        count=count,
        total=total,
        minimum=minimum,
        maximum=maximum,
        values=tuple(zip(flat[::2], flat[1::2], strict=True)),
        unit=unit,
    )
