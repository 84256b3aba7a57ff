"""
Aggregates the measurements of one period: count, sum, extremes, and a bounded number of distinct values.

Beyond the bound values are merged into bins whose width is proportional to the value, which bounds the relative error
of a percentile. Source: the bins are those of DDSketch (Masson et al. 2019), represented by their mean.
"""

import math
from collections.abc import Iterable, Mapping

from headrace.cloudwatch.metrics.metric import Point

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
        """Return the measurements as an immutable point."""
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
