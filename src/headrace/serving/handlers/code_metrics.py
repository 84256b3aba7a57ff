"""
Metrics that a user's code reports on lines of its output, in the form of DJL and TorchServe.

`[METRICS]<name>.<unit>:<value>|#<dimension>:<value>,...|#type:<type>|#hostname:<host>,<time>[,<request ids>]`

Source: pytorch/serve `frontend/server/src/main/java/org/pytorch/serve/metrics/Metric.java`.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

MetricType = Literal["COUNTER", "GAUGE", "HISTOGRAM"]
Labels = tuple[tuple[str, str], ...]

MAX_SERIES: Final = 1000
"""Series that one model may report; more are dropped, because the code chooses names and labels."""
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Buckets of TorchServe's histograms, which are those of Prometheus' client for Java."""
_LINE: Final = re.compile(
    r"\[METRICS\](?P<name>\w+)\.(?P<unit>[^:|]*):(?P<value>[^|]+)\|#(?P<dimensions>[^|]*)(?P<rest>\|#.*)$"
)
_TYPE: Final = re.compile(r"\|#type:(COUNTER|GAUGE|HISTOGRAM)")
_NAME: Final = re.compile(r"(?!__)[A-Za-z_]\w*", re.ASCII)
_RESERVED_LABELS: Final = frozenset({"le", "quantile"})
"""Labels of histograms and summaries: one more would spoil the whole page for Prometheus, as one given twice does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """A value on a line of output."""

    name: str
    type: MetricType
    value: float
    labels: Labels


def read_line(line: str) -> MetricLine | None:
    """Return the metric on a line; None if the line has no metric."""
    found = _LINE.match(line, max(line.find("[METRICS]"), 0))  # one try: a long line of beginnings would take long
    if found is None:
        return None
    try:
        value = float(found["value"])
    except ValueError:
        return None
    kind = _TYPE.search(found["rest"])
    pairs = (pair.partition(":")[::2] for pair in found["dimensions"].split(",") if pair)
    labels = tuple((name, value) for name, value in pairs if _NAME.fullmatch(name))
    metric_type: MetricType = kind[1] if kind is not None else "GAUGE"  # type: ignore[assignment]
    names = {name for name, _ in labels}
    if len(names) < len(labels) or names & _RESERVED_LABELS:
        return None
    if not _NAME.fullmatch(found["name"]) or not math.isfinite(value) or (metric_type == "COUNTER" and value < 0):
        return None
    return MetricLine(name=found["name"], type=metric_type, value=value, labels=labels)


@dataclass(slots=True, eq=False)
class _Series:
    """The state of one series: the sum or the last value, and for histograms the counts of buckets."""

    value: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))


class CodeMetrics:
    """The metrics of one model, kept when its children are restarted."""

    def __init__(self) -> None:
        self._types: dict[str, tuple[MetricType, tuple[str, ...]]] = {}
        self._series: dict[tuple[str, Labels], _Series] = {}

    def observe(self, line: str) -> None:
        """Record the metric on a line of output; ignore all other lines."""
        metric = read_line(line) if "[METRICS]" in line else None
        if metric is None:
            return
        if metric.name not in self._types and len(self._types) >= MAX_SERIES:
            return
        names = tuple(name for name, _ in metric.labels)
        if self._types.setdefault(metric.name, (metric.type, names)) != (metric.type, names):
            return  # Prometheus has one type and one set of labels for each name
        key = (metric.name, metric.labels)
        if key not in self._series and len(self._series) >= MAX_SERIES:
            return
        series = self._series.setdefault(key, _Series())
        series.value = metric.value if metric.type == "GAUGE" else series.value + metric.value
        series.counts[bisect_left(_BOUNDS, metric.value)] += 1

    def families(self) -> Iterator[Metric]:
        for name, (metric_type, labels) in self._types.items():
            family = _FAMILIES[metric_type](name, f"{name} as reported by the model's code.", labels=labels)
            for (of, values), series in self._series.items():
                if of == name:
                    self._add(family, [value for _, value in values], series)
            yield family

    @staticmethod
    def _add(
        family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily, labels: list[str], series: _Series
    ) -> None:
        if not isinstance(family, HistogramMetricFamily):
            family.add_metric(labels, series.value)
            return
        total, buckets = 0, []
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), series.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(labels, buckets, series.value)


_FAMILIES: Final = {"COUNTER": CounterMetricFamily, "GAUGE": GaugeMetricFamily, "HISTOGRAM": HistogramMetricFamily}
