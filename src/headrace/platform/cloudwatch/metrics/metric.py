"""
Metrics and their datapoints: the seam between the code that measures, stores and evaluates.

A series holds the datapoints of one metric over time; each aggregates one period, aligned to multiples of the period
since 1970. Source: CloudWatch user guide, "Metrics concepts".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Dimensions = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The identity of a series; the unit is not part of it."""

    namespace: str
    name: str
    dimensions: Dimensions = ()

    @classmethod
    def of(cls, namespace: str, name: str, dimensions: Iterable[Mapping[str, str]] | None) -> "Metric":
        """Return the metric whose dimensions are given as the API has them: objects with `Name` and `Value`."""
        pairs = sorted((dimension["Name"], dimension["Value"]) for dimension in dimensions or ())
        return cls(namespace=namespace, name=name, dimensions=tuple(pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The measurements of one period, aggregated; a period without measurements has no point."""

    start_s: float
    """Seconds since 1970."""
    count: float
    total: float
    minimum: float
    maximum: float
    values: tuple[tuple[float, float], ...] = ()
    """(value, count), ascending, for percentiles; rounded where there were many. Empty: no longer kept."""
    unit: str = "None"


class MetricSink(Protocol):
    """Takes measurements. `put` may be called from any thread and only enqueues."""

    def put(self, metric: Metric, value: float, *, now_s: float, count: float = 1.0, unit: str = "None") -> None:
        """Record `count` measurements of `value`."""
        ...


class StatisticSink(MetricSink, Protocol):
    """A sink that takes aggregated measurements as well."""

    def put_point(self, metric: Metric, point: Point) -> None:
        """Record measurements that were aggregated elsewhere; they count in the periods that contain their start."""
        ...


class SeriesReader(Protocol):
    def read(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """Return the points of [start_s, end_s), oldest first; `period_s` is 1 or 5 (both as 10), 10, 30 or 60 x n."""
        ...

    def list(
        self, *, namespace: str | None = None, name: str | None = None, since_s: float = -math.inf
    ) -> Sequence[Metric]:
        """Return the metrics measured at `since_s` or later, ordered by namespace, name and dimensions."""
        ...


class SeriesStore(StatisticSink, SeriesReader, Protocol):
    """A sink whose series can be read, as CloudWatch's operations need it."""


_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class Tier:
    period_s: int
    kept_s: float


TIERS = (Tier(10, 3 * _HOUR_S), Tier(60, 15 * _DAY_S), Tier(300, 63 * _DAY_S), Tier(3600, 455 * _DAY_S))
"""Finest first. Every measurement counts in all of them."""


def tier_of(period_s: int) -> int:
    """Return the index of the tier to read a period from: the coarsest whose points add up to it."""
    fitting = [number for number, tier in enumerate(TIERS) if period_s % tier.period_s == 0]
    return max(fitting, default=0)


def whole_period(period_s: int) -> int:
    """Return the period in which points are returned: at least ten seconds, the finest that is kept."""
    return max(period_s, TIERS[0].period_s)


MAX_VALUES = 64
"""Distinct values that a bucket keeps."""
_FINEST_GROWTH = 1.01
"""Ratio of a bin's bound to the previous one; squared until there are few enough bins."""


class Bucket:
    """The measurements of one period; they can be added and merged, not removed."""

    __slots__ = ("_values", "count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0.0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._values: dict[float, float] | None = None
        """None: all measurements equal `minimum`. Empty: the values are unknown."""

    def add(self, value: float, count: float) -> None:
        """Add a value that was measured `count` times."""
        if self._values is None and self.count and value != self.minimum:
            self._values = {self.minimum: self.count}
        self.count += count
        self.total += value * count
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        if self._values:
            self._values[value] = self._values.get(value, 0.0) + count
            if len(self._values) > MAX_VALUES:
                self._values = _binned(self._values)

    def merge(self, point: Point) -> None:
        """Add the measurements of another period. If their values are unknown, so are those of the result."""
        if point.count <= 0:
            return
        own_values = self.values()
        has_values = bool(point.values) and (bool(own_values) or not self.count)
        merged: dict[float, float] = {}
        for value, count in (*own_values, *point.values) if has_values else ():
            merged[value] = merged.get(value, 0.0) + count
        self.count += point.count
        self.total += point.total
        self.minimum = min(self.minimum, point.minimum)
        self.maximum = max(self.maximum, point.maximum)
        if self.minimum == self.maximum:
            self._values = None
        else:
            self._values = _binned(merged) if len(merged) > MAX_VALUES else merged

    def values(self) -> tuple[tuple[float, float], ...]:
        """Return (value, count), ascending; empty if the values are unknown."""
        if self._values is None:
            return ((self.minimum, self.count),) if self.count else ()
        return tuple(sorted(self._values.items()))

    def point(self, start_s: float, unit: str) -> Point:
        return Point(
            start_s=start_s,
            count=self.count,
            total=self.total,
            minimum=self.minimum,
            maximum=self.maximum,
            values=self.values(),
            unit=unit,
        )


def resample(points: Iterable[Point], *, period_s: int) -> list[Point]:
    """Aggregate points into periods of another length, oldest first."""
    buckets: dict[int, Bucket] = {}
    units: dict[int, str] = {}
    for point in points:
        index = int(point.start_s // period_s)
        buckets.setdefault(index, Bucket()).merge(point)
        units[index] = point.unit
    return [buckets[index].point(index * period_s, units[index]) for index in sorted(buckets)]


def _binned(values: Mapping[float, float]) -> dict[float, float]:
    """Merge values into at most half as many bins as a bucket keeps, so that merging stays rare."""
    growth = _FINEST_GROWTH
    while True:
        bins: dict[tuple[int, int], list[float]] = {}
        for value, count in values.items():
            sums = bins.setdefault(_bin_of(value, growth), [0.0, 0.0])
            sums[0] += value * count
            sums[1] += count
        if len(bins) <= MAX_VALUES // 2:
            return {total / count: count for total, count in bins.values()}
        growth *= growth


def _bin_of(value: float, growth: float) -> tuple[int, int]:
    if value == 0:
        return 0, 0
    return (1 if value > 0 else -1), math.floor(math.log(abs(value)) / math.log(growth))
