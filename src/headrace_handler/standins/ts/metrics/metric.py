"""A single measurement."""

import socket
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from .caching_metric import CachingMetric, metric_line
from .dimension import Dimension


class Metric:
    """A measurement with its dimensions, as handlers print it."""

    def __init__(
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: Sequence[Dimension],
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self._metric = CachingMetric(name, unit, [dimension.name for dimension in dimensions])
        self.name = name
        self.unit = self._metric.unit
        self.value = value
        self.dimensions = list(dimensions)
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: float) -> None:
        """Report a value."""
        self._metric.add_or_update(value, [dimension.value for dimension in self.dimensions], self.request_id or "")

    def reset(self) -> None:
        """Report 0."""
        self.update(0)

    def __str__(self) -> str:
        return metric_line(self.name, self.unit, self.value, self.dimensions, self.request_id or "")

    def to_dict(self) -> dict[str, Any]:
        return OrderedDict(
            MetricName=self.name,
            Value=self.value,
            Unit=self.unit,
            Dimensions=self.dimensions,
            Timestamp=int(time.time()),
            HostName=socket.gethostname(),
            RequestId=self.request_id,
        )
