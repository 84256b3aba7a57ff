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
    """Reads back the series of metrics."""

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
