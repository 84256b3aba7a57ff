"""
What a measurement is, and where it goes: the seam between those who measure, those who keep, and those who decide.

A series is what one metric has been over time; its points are statistics over a period, aligned to multiples of the
period since 1970. Source: CloudWatch user guide, "Metrics concepts".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Dimensions = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Which series: all four tell two apart, the unit does not."""

    namespace: str
    name: str
    dimensions: Dimensions = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What a metric was in one period; only periods with measurements have one."""

    start_s: float
    """Seconds since 1970."""
    count: float
    total: float
    minimum: float
    maximum: float
    values: tuple[tuple[float, float], ...] = ()
    """(value, how often), ascending, for percentiles; rounded where there were many. Empty: not kept so long."""
    unit: str = "None"


class MetricSink(Protocol):
    """Takes measurements. `put` may be called from any thread, and is quick: nothing is written before it returns."""

    def put(self, metric: Metric, value: float, *, now_s: float, count: float = 1.0, unit: str = "None") -> None:
        """Measure `value`, `count` times."""
        ...


class StatisticSink(MetricSink, Protocol):
    """Takes statistics of measurements too."""

    def put_point(self, metric: Metric, point: Point) -> None:
        """Take what was put together elsewhere (a statistic set); it counts in the periods that hold its start."""
        ...


class SeriesReader(Protocol):
    """Reads back what was measured."""

    def read(self, metric: Metric, *, start_s: float, end_s: float, period_s: int) -> Sequence[Point]:
        """The points of [start_s, end_s), oldest first; `period_s` is 10, 30 or a multiple of 60 (1, 5: as 10)."""
        ...

    def list(
        self, *, namespace: str | None = None, name: str | None = None, since_s: float = -math.inf
    ) -> Sequence[Metric]:
        """The metrics that are kept and were measured at `since_s` or later, by namespace, name and dimensions."""
        ...


class SeriesStore(StatisticSink, SeriesReader, Protocol):
    """Takes measurements and reads them back."""
