"""
Series in memory: what was measured, kept within bounds. Also what the series in a file collects before it writes.

A measurement is put into a queue, which takes well under a microsecond and no lock; it is counted when somebody reads,
when a keeper folds, or, where the queue grows, a few at each further measurement, so that nobody waits long.
"""

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.cloudwatch.metrics.buckets import Bucket, together
from headrace.cloudwatch.metrics.metric import Metric, Point
from headrace.cloudwatch.metrics.retention import TIERS, tier_of, whole_period

MAX_SERIES = 10_000
MAX_POINTS = 400_000
"""Of all series together; the finest points go first when there are more."""
IDLE_S = 3600.0
"""A series that was not measured for so long makes room for a new one."""
_LONG_QUEUE = 4096
_FOLDED_AT_ONCE = 64
_SLACK = 1.1
"""Old points are dropped when there are so many times what is kept: not at every measurement."""

_Measured = tuple[Metric, float, float, float, str]


@dataclass(slots=True)
class Held:
    """One series."""

    unit: str = "None"
    newest_s: float = -math.inf
    tiers: tuple[dict[int, Bucket], ...] = field(default_factory=lambda: tuple({} for _ in TIERS))
    """Number of the period since 1970 → what was measured in it; one mapping for each tier."""

    def points(self, number: int) -> Sequence[Point]:
        """All points of a tier, oldest first."""
        period_s, buckets = TIERS[number].period_s, self.tiers[number]
        return [buckets[index].point(index * period_s, self.unit) for index in sorted(buckets)]


class MemorySeries:
    """A `MetricSink` and a `SeriesReader`; any thread may use it."""

    def __init__(self, *, max_series: int = MAX_SERIES, max_points: int = MAX_POINTS) -> None:
        self._max_series = max_series
        self._max_points = max_points
        self._queue: deque[_Measured] = deque()
        self._lock = threading.Lock()
        self._held: dict[Metric, Held] = {}
        self._num_points = 0
        self.num_refused = 0
        """Measurements that were not kept, as there are too many series, or no numbers."""

    def put(self, metric: Metric, value: float, *, now_s: float, count: float = 1.0, unit: str = "None") -> None:
        """Measure `value`, `count` times."""
        self._queue.append((metric, value, now_s, count, unit))
        if len(self._queue) > _LONG_QUEUE and self._lock.acquire(blocking=False):
            try:
                self._fold(_FOLDED_AT_ONCE)
            finally:
                self._lock.release()

    def put_point(self, metric: Metric, point: Point) -> None:
        """Take what was put together elsewhere (a statistic set); it counts in the periods that hold its start."""
        with self._lock:
            self._fold_all()
            self._merge(metric, [[point] for _ in TIERS])

    def read(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """The points of [start_s, end_s), oldest first; the first one may begin before `start_s`, which it holds."""
        period_s = whole_period(period_s)
        number = tier_of(period_s)
        tier_s = TIERS[number].period_s
        first = int(start_s // period_s) * period_s // tier_s
        with self._lock:
            self._fold_all()
            held = self._held.get(metric)
            if held is None:
                return []
            buckets = held.tiers[number]
            found = sorted(index for index in buckets if first <= index and index * tier_s < end_s)
            points = [buckets[index].point(index * tier_s, held.unit) for index in found]
        return points if period_s == tier_s else together(points, period_s=period_s)

    def list(
        self, *, namespace: str | None = None, name: str | None = None, since_s: float = -math.inf
    ) -> Sequence[Metric]:
        """The metrics that are kept and were measured at `since_s` or later, by namespace, name and dimensions."""
        with self._lock:
            self._fold_all()
            kept = [metric for metric, held in self._held.items() if held.newest_s >= since_s]
        found = [m for m in kept if namespace in (None, m.namespace) and name in (None, m.name)]
        return sorted(found, key=lambda metric: (metric.namespace, metric.name, metric.dimensions))

    def take(self) -> dict[Metric, Held]:
        """Hand over all that was measured, and begin anew."""
        with self._lock:
            self._fold_all()
            taken, self._held, self._num_points = self._held, {}, 0
        return taken

    def give_back(self, taken: Mapping[Metric, Held]) -> None:
        """Take again what could not be used."""
        with self._lock:
            for metric, held in taken.items():
                self._merge(metric, [held.points(number) for number in range(len(TIERS))])

    def _merge(self, metric: Metric, tiers: Sequence[Iterable[Point]]) -> None:
        held = self._series(metric, -math.inf)
        if held is None:
            return
        for number, points in enumerate(tiers):
            for point in points:
                self._bucket(held, number, point.start_s).merge(point)
                held.unit, held.newest_s = point.unit, max(held.newest_s, point.start_s)
        self._thin_out()

    def _fold_all(self) -> None:
        self._fold(len(self._queue))

    def _fold(self, at_most: int) -> None:
        """Count what waits; the lock is held."""
        for _ in range(at_most):
            try:
                metric, value, now_s, count, unit = self._queue.popleft()
            except IndexError:  # it was taken by nobody else, but `len` may have counted what came later
                return
            if not (math.isfinite(value) and math.isfinite(now_s) and 0 < count < math.inf):
                self.num_refused += 1
                continue
            held = self._series(metric, now_s)
            if held is not None:
                held.unit, held.newest_s = unit, max(held.newest_s, now_s)
                for number in range(len(TIERS)):
                    self._bucket(held, number, now_s).add(value, count)
        self._thin_out()

    def _series(self, metric: Metric, now_s: float) -> Held | None:
        held = self._held.get(metric)
        if held is None:
            if len(self._held) >= self._max_series and not self._make_room(now_s):
                self.num_refused += 1
                return None
            held = self._held[metric] = Held()
        return held

    def _make_room(self, now_s: float) -> bool:
        oldest = min(self._held, key=lambda metric: self._held[metric].newest_s)
        if self._held[oldest].newest_s > now_s - IDLE_S:
            return False
        self._num_points -= sum(map(len, self._held.pop(oldest).tiers))
        return True

    def _bucket(self, held: Held, number: int, time_s: float) -> Bucket:
        buckets, tier = held.tiers[number], TIERS[number]
        index = int(time_s // tier.period_s)
        bucket = buckets.get(index)
        if bucket is None:
            bucket = buckets[index] = Bucket()
            self._num_points += 1
            num_kept = tier.kept_s / tier.period_s
            if len(buckets) > num_kept * _SLACK:
                self._drop_before(buckets, max(buckets) - num_kept)
        return bucket

    def _drop_before(self, buckets: dict[int, Bucket], first: float) -> None:
        for index in [index for index in buckets if index <= first]:
            del buckets[index]
            self._num_points -= 1

    def _thin_out(self) -> None:
        """Forget the older half of the finest points, then of the next ones, until the rest fits."""
        for number in range(len(TIERS)):
            if self._num_points <= self._max_points:
                return
            for held in self._held.values():
                buckets = held.tiers[number]
                for index in sorted(buckets)[: len(buckets) // 2]:
                    del buckets[index]
                    self._num_points -= 1
