"""
What is remembered of the measurements of one period: count, sum, extremes, and the values as far as they fit.

Values that are too many are put together in bins whose width is a share of the value, so that a percentile is off by a
small share too. Source: the bins are those of DDSketch (Masson et al. 2019), with the mean of a bin for its value.
"""

import math
from collections.abc import Iterable, Mapping

from headrace.cloudwatch.metrics.metric import Point

MAX_VALUES = 64
"""Different values that a bucket keeps apart."""
_FINEST_GROWTH = 1.01
"""Of one bin over the one before, where bins are needed; doubled until they are few enough."""


class Bucket:
    """Measurements of one period; they can be added and put together, not taken away."""

    __slots__ = ("_values", "count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0.0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._values: dict[float, float] | None = None
        """None: all measurements have the one value `minimum`. Empty: the values are not known."""

    def add(self, value: float, count: float) -> None:
        """Take a value that was measured `count` times."""
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
        """Take the measurements of another period. Without their values ours are of no use any more."""
        if point.count <= 0:
            return
        ours, theirs = self.values(), point.values
        has_values = bool(theirs) and (bool(ours) or not self.count)
        together: dict[float, float] = {}
        for value, count in (*ours, *theirs) if has_values else ():
            together[value] = together.get(value, 0.0) + count
        self.count += point.count
        self.total += point.total
        self.minimum = min(self.minimum, point.minimum)
        self.maximum = max(self.maximum, point.maximum)
        if self.minimum == self.maximum:
            self._values = None
        else:
            self._values = _binned(together) if len(together) > MAX_VALUES else together

    def values(self) -> tuple[tuple[float, float], ...]:
        """(Value, how often), ascending; empty if they are not known."""
        if self._values is None:
            return ((self.minimum, self.count),) if self.count else ()
        return tuple(sorted(self._values.items()))

    def point(self, start_s: float, unit: str) -> Point:
        """As others see it."""
        return Point(
            start_s=start_s,
            count=self.count,
            total=self.total,
            minimum=self.minimum,
            maximum=self.maximum,
            values=self.values(),
            unit=unit,
        )


def together(points: Iterable[Point], *, period_s: int) -> list[Point]:
    """The same measurements in periods of another length, oldest first."""
    buckets: dict[int, Bucket] = {}
    units: dict[int, str] = {}
    for point in points:
        index = int(point.start_s // period_s)
        buckets.setdefault(index, Bucket()).merge(point)
        units[index] = point.unit
    return [buckets[index].point(index * period_s, units[index]) for index in sorted(buckets)]


def _binned(values: Mapping[float, float]) -> dict[float, float]:
    """At most half of what a bucket keeps, so that this is done rarely."""
    growth = _FINEST_GROWTH
    while True:
        bins: dict[tuple[int, int], list[float]] = {}
        for value, count in values.items():
            held = bins.setdefault(_bin_of(value, growth), [0.0, 0.0])
            held[0] += value * count
            held[1] += count
        if len(bins) <= MAX_VALUES // 2:
            return {total / count: count for total, count in bins.values()}
        growth *= growth


def _bin_of(value: float, growth: float) -> tuple[int, int]:
    if value == 0:
        return 0, 0
    return (1 if value > 0 else -1), math.floor(math.log(abs(value)) / math.log(growth))
