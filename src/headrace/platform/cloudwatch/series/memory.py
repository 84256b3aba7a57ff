"""
Series in memory, within bounds; also the write buffer of the series in a file.

`put` appends to a queue, which takes well under a microsecond and no lock. The queue is folded into buckets by readers
and, once it is long, a few entries at a time by `put` itself, so that no caller waits long.
"""

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from headrace.platform.cloudwatch.metrics.metric import TIERS, Bucket, Metric, Point, resample, tier_of, whole_period

MAX_SERIES = 10_000
MAX_POINTS = 400_000
"""Points of all series; beyond it the finest are dropped first."""
IDLE_S = 3600.0
"""Seconds without a measurement after which a series may be replaced by a new one."""
_LONG_QUEUE = 4096
_FOLDED_AT_ONCE = 64
_SLACK = 1.1
"""Expired points are dropped once a tier exceeds its size by this factor, not at every measurement."""

_Measured = tuple[Metric, float, float, float, str]


@dataclass(slots=True)
class SeriesData:
    """The points of one series, in all tiers."""

    unit: str = "None"
    newest_s: float = -math.inf
    tiers: tuple[dict[int, Bucket], ...] = field(default_factory=lambda: tuple({} for _ in TIERS))
    """For each tier: number of the period since 1970 → its measurements."""

    def points(self, number: int) -> Sequence[Point]:
        """Return the points of one tier, oldest first."""
        period_s, buckets = TIERS[number].period_s, self.tiers[number]
        return [buckets[index].point(index * period_s, self.unit) for index in sorted(buckets)]


class MemorySeries:
    """A thread-safe `SeriesStore` in memory."""

    def __init__(self, *, max_series: int = MAX_SERIES, max_points: int = MAX_POINTS) -> None:
        self._max_series = max_series
        self._max_points = max_points
        self._queue: deque[_Measured] = deque()
        self._lock = threading.Lock()
        self._data: dict[Metric, SeriesData] = {}
        self._num_points = 0
        self.num_refused = 0
        """Measurements dropped because there are too many series, or because they are not numbers."""

    def put(self, metric: Metric, value: float, *, now_s: float, count: float = 1.0, unit: str = "None") -> None:
        self._queue.append((metric, value, now_s, count, unit))
        if len(self._queue) > _LONG_QUEUE and self._lock.acquire(blocking=False):
            try:
                self._fold(_FOLDED_AT_ONCE)
            finally:
                self._lock.release()

    def put_point(self, metric: Metric, point: Point) -> None:
        with self._lock:
            self._fold_all()
            numbers = (point.start_s, point.count, point.total, point.minimum, point.maximum)
            if all(map(math.isfinite, chain(numbers, *point.values))):
                self._merge(metric, [[point] for _ in TIERS])
            else:
                self.num_refused += 1

    def read(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """Return the points of [start_s, end_s), oldest first; the first is the one that contains `start_s`."""
        period_s = whole_period(period_s)
        number = tier_of(period_s)
        tier_s = TIERS[number].period_s
        first = int(start_s // period_s) * period_s // tier_s
        with self._lock:
            self._fold_all()
            data = self._data.get(metric)
            if data is None:
                return []
            buckets = data.tiers[number]
            found = sorted(index for index in buckets if first <= index and index * tier_s < end_s)
            points = [buckets[index].point(index * tier_s, data.unit) for index in found]
        return points if period_s == tier_s else resample(points, period_s=period_s)

    def list(
        self, *, namespace: str | None = None, name: str | None = None, since_s: float = -math.inf
    ) -> Sequence[Metric]:
        with self._lock:
            self._fold_all()
            kept = [metric for metric, data in self._data.items() if data.newest_s >= since_s]
        found = [m for m in kept if namespace in (None, m.namespace) and name in (None, m.name)]
        return sorted(found, key=lambda metric: (metric.namespace, metric.name, metric.dimensions))

    def take(self) -> dict[Metric, SeriesData]:
        with self._lock:
            self._fold_all()
            taken, self._data, self._num_points = self._data, {}, 0
        return taken

    def give_back(self, taken: Mapping[Metric, SeriesData]) -> None:
        """Merge series back in that could not be written."""
        with self._lock:
            for metric, data in taken.items():
                self._merge(metric, [data.points(number) for number in range(len(TIERS))])

    def _merge(self, metric: Metric, tiers: Sequence[Iterable[Point]]) -> None:
        data = self._data_of(metric, -math.inf)
        if data is None:
            return
        for number, points in enumerate(tiers):
            for point in points:
                self._bucket(data, number, point.start_s).merge(point)
                data.unit, data.newest_s = point.unit, max(data.newest_s, point.start_s)
        self._thin_out()

    def _fold_all(self) -> None:
        self._fold(len(self._queue))

    def _fold(self, at_most: int) -> None:
        """Fold queued measurements into buckets; the caller holds the lock."""
        for _ in range(at_most):
            try:
                metric, value, now_s, count, unit = self._queue.popleft()
            except IndexError:  # the queue is shorter than `at_most`
                return
            # Checked here and not in `put`, whose callers wait for nothing.
            if not (math.isfinite(value) and math.isfinite(now_s) and 0 < count < math.inf):
                self.num_refused += 1
                continue
            data = self._data_of(metric, now_s)
            if data is not None:
                data.unit, data.newest_s = unit, max(data.newest_s, now_s)
                for number in range(len(TIERS)):
                    self._bucket(data, number, now_s).add(value, count)
        self._thin_out()

    def _data_of(self, metric: Metric, now_s: float) -> SeriesData | None:
        data = self._data.get(metric)
        if data is None:
            if len(self._data) >= self._max_series and not self._make_room(now_s):
                self.num_refused += 1
                return None
            data = self._data[metric] = SeriesData()
        return data

    def _make_room(self, now_s: float) -> bool:
        # A live series is never replaced: two that alternate would both lose their history.
        oldest = min(self._data, key=lambda metric: self._data[metric].newest_s)
        if self._data[oldest].newest_s > now_s - IDLE_S:
            return False
        self._num_points -= sum(map(len, self._data.pop(oldest).tiers))
        return True

    def _bucket(self, data: SeriesData, number: int, time_s: float) -> Bucket:
        buckets, tier = data.tiers[number], TIERS[number]
        index = int(time_s // tier.period_s)
        bucket = buckets.get(index)
        if bucket is None:
            bucket = buckets[index] = Bucket()
            self._num_points += 1
            num_kept = tier.kept_s / tier.period_s
            if len(buckets) > num_kept * _SLACK:
                first = max(buckets) - num_kept
                for expired in [index for index in buckets if index <= first]:
                    del buckets[expired]
                    self._num_points -= 1
        return bucket

    def _thin_out(self) -> None:
        """Drop the older half of the finest points, then of the next tier, until the rest fits."""
        for number in range(len(TIERS)):
            if self._num_points <= self._max_points:
                return
            for data in self._data.values():
                buckets = data.tiers[number]
                for index in sorted(buckets)[: len(buckets) // 2]:
                    del buckets[index]
                    self._num_points -= 1
