"""The methods by which handlers add metrics, of both forms of `ctx.metrics`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from .dimension import Dimension
from .metric_cache_errors import MetricsCacheValueError
from .metric_type_enum import MetricTypes

COUNTER, GAUGE = MetricTypes.COUNTER, MetricTypes.GAUGE
_TIMES: Final = ("ms", "s")
_SIZES: Final = ("MB", "kB", "GB", "B")


class MetricAdders(ABC):
    """Methods that add metrics of a kind, each by its unit."""

    @abstractmethod
    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = COUNTER,
    ) -> None:
        """Report a value of a metric."""

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Sequence[Dimension] = ()
    ) -> None:
        self.add_metric(name, value, "count", idx, dimensions, COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = GAUGE,
    ) -> None:
        if unit not in _TIMES:
            raise MetricsCacheValueError("the unit for a timed metric should be one of ['ms', 's']")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = GAUGE,
    ) -> None:
        if unit not in _SIZES:
            raise MetricsCacheValueError("The unit for size based metric is one of ['MB','kB', 'GB', 'B']")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = GAUGE,
    ) -> None:
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)
