"""A metric, and the line that reports it."""

import logging
import socket
import time
from collections.abc import Sequence
from typing import Final

from .dimension import Dimension
from .metric_type_enum import MetricTypes

logger = logging.getLogger(__name__)

UNITS: Final = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "percent": "Percent",
    "count": "Count",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "kB": "Kilobytes",
    "B": "Bytes",
    "": "unit",
}


class CachingMetric:
    """A metric with the names of its dimensions."""

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.metric_name = metric_name
        self.unit = UNITS.get(unit, unit)
        self.dimension_names = list(dimension_names or ())
        self.metric_type = metric_type

    def add_or_update(self, value: float, dimension_values: Sequence[str] = (), request_id: str = "") -> None:
        """Report a value. A wrong number of dimensions or a negative counter is logged as an error."""
        try:
            self._check(value, dimension_values)
        except ValueError as error:
            logger.error("[METRICS]Failed to update metric with name:%s: %s", self.metric_name, error)  # noqa: TRY400
            return
        dimensions = [Dimension(*pair) for pair in zip(self.dimension_names, dimension_values, strict=True)]
        logger.info("[METRICS]%s", self.render(value, dimensions, request_id))

    def update(self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()) -> None:
        """Report a value with other dimensions than those of the metric."""
        self.dimension_names = [dimension.name for dimension in dimensions]
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)

    def render(self, value: float, dimensions: Sequence[Dimension], request_id: str) -> str:
        """Render the line of a value, as TorchServe's frontend parses it."""
        return metric_line(self.metric_name, self.unit, value, dimensions, request_id, metric_type=self.metric_type)

    def _check(self, value: float, dimension_values: Sequence[str] | None) -> None:
        if dimension_values is None or len(dimension_values) != len(self.dimension_names):
            raise ValueError(
                f"Dimension values: {dimension_values} should correspond to Dimension names: {self.dimension_names}"
            )
        if self.metric_type.value == "counter" and value < 0:
            raise ValueError("Counter metric update value cannot be negative")


def metric_line(
    name: str,
    unit: str,
    value: float,
    dimensions: Sequence[Dimension],
    request_id: str,
    *,
    metric_type: MetricTypes | None = None,
) -> str:
    """Return the line of a value; those that handlers print themselves have no type."""
    parts = [f"{name}.{unit}:{value}", f"#{','.join(map(str, dimensions))}"]
    if metric_type is not None:
        parts.append(f"#type:{metric_type.name}")
    end = f",{request_id}" if request_id else ""
    return "|".join([*parts, f"#hostname:{socket.gethostname()},{int(time.time())}{end}"])
