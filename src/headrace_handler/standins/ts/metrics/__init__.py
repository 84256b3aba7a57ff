"""Metrics that handlers add: `ctx.metrics`, in its present form and in the older one, and single measurements."""

import enum
import json
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace_handler.submodules import add_submodules


class MetricsCacheTypeError(TypeError):
    """An argument has another type than expected."""


class MetricsCacheValueError(ValueError):
    """An argument has a value that is not allowed."""


class MetricsCacheKeyError(KeyError):
    """The metric does not exist, or the file of metrics lacks a key."""


class MetricTypes(enum.Enum):
    """Counters are added up, gauges keep the last value, and histograms count values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass
class Dimension:
    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, str]:
        return {"Name": self.name, "Value": self.value}


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
        self._metric.add_or_update(value, [dimension.value for dimension in self.dimensions], self.request_id or "")

    def reset(self) -> None:
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


COUNTER, GAUGE = MetricTypes.COUNTER, MetricTypes.GAUGE
_TIMES: Final = ("ms", "s")
_SIZES: Final = ("MB", "kB", "GB", "B")


class MetricAdders:
    """Methods that add metrics of a kind, each by its unit."""

    add_metric: Any
    """Reports a value of a metric."""

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


class MetricsCacheYamlImpl(MetricAdders):
    """The metrics of a model by type and name."""

    def __init__(self, config_file_path: str) -> None:
        """Name a file with `model_metrics`, in YAML or JSON; `initialize_cache` reads it."""
        self.config_file_path = config_file_path
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {}
        self.model_name: str | None = None
        self.request_ids: Mapping[int, str] | str | None = None

    def initialize_cache(self) -> None:
        for metric_type, metrics in _model_metrics(self.config_file_path).items():
            for metric in metrics:
                try:
                    name, unit, dimensions = metric["name"], metric["unit"], metric["dimensions"]
                except KeyError as error:
                    raise MetricsCacheKeyError(f"Key not found in cache spec: {error}") from error
                self.add_metric_to_cache(name, unit, dimensions, MetricTypes(metric_type))

    def set_request_ids(self, request_ids: Mapping[int, str] | str) -> None:
        self.request_ids = request_ids

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = COUNTER,
    ) -> None:
        """
        Report a value of a metric, which is created with its first value.

        `idx` is the index of the request in the batch; None: all requests. `dimensions` are those besides the model's
        name and the level.
        """
        self._report(metric_type, name, value, unit, self._request_id(idx), dimensions)

    def add_error(self, name: str, value: float, dimensions: Sequence[Dimension] = ()) -> None:
        self._report(COUNTER, name, value, "", "", dimensions)

    def get_metric(self, metric_name: str, metric_type: MetricTypes = COUNTER) -> CachingMetric:
        """Return a metric. Raises `MetricsCacheKeyError`: there is none."""
        try:
            return self.cache[MetricTypes(metric_type.value)][metric_name]
        except KeyError:
            raise MetricsCacheKeyError(
                f"metric with name: {metric_name} and type: {metric_type.name} not found."
            ) from None

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: list[str] | None = None,
        metric_type: MetricTypes = COUNTER,
    ) -> CachingMetric:
        """Create a metric, whose `add_or_update` reports values. It replaces one of the same name and type."""
        for name, value in (("metric_name", metric_name), ("unit", unit)):
            if not isinstance(value, str):
                raise MetricsCacheTypeError(f"`{name}` must be a str")
        if dimension_names is not None and not isinstance(dimension_names, list):
            raise MetricsCacheTypeError("`dimension_names` should be a list of dimension name strings")
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type)
        self.cache.setdefault(MetricTypes(metric_type.value), {})[metric_name] = metric
        return metric

    def _report(
        self,
        metric_type: MetricTypes,
        name: str,
        value: float,
        unit: str,
        request_id: str,
        dimensions: Sequence[Dimension],
    ) -> None:
        given = {dimension.name for dimension in dimensions}
        always = (
            [Dimension("ModelName", str(self.model_name)), Dimension("Level", "Model")]
            if request_id
            else [Dimension("Level", "Error")]
        )
        every = [*dimensions, *(dimension for dimension in always if dimension.name not in given)]
        try:
            metric = self.get_metric(name, metric_type)
        except MetricsCacheKeyError:
            metric = self.add_metric_to_cache(name, unit, [dimension.name for dimension in every], metric_type)
        metric.add_or_update(value, [dimension.value for dimension in every], request_id)

    def _request_id(self, idx: int | None) -> str:
        if not isinstance(self.request_ids, Mapping):
            return self.request_ids or ""
        if idx is not None and idx in self.request_ids:
            return self.request_ids[idx]
        return ",".join(self.request_ids.values())


def _model_metrics(path: str) -> Mapping[str, Any]:
    text = Path(path).read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except ValueError:
        import yaml

        content = yaml.safe_load(text)
    metrics = content.get("model_metrics") if isinstance(content, dict) else None
    if not isinstance(metrics, dict):
        raise MetricsCacheKeyError(f"'model_metrics' key not found in {path}")
    return metrics


class MetricsStore(MetricAdders):
    """Metrics of one call, kept in a list."""

    def __init__(self, request_ids: Mapping[int, str] | None, model_name: str) -> None:
        self.store: list[Metric] = []
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: dict[str, Metric] = {}

    def add_error(self, name: str, value: float, dimensions: Sequence[Dimension] | None = None) -> None:
        self._add(name, value, "", None, [*(dimensions or ()), Dimension("Level", "Error")])

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: Sequence[Dimension] | None = None,
        metric_type: MetricTypes = COUNTER,
    ) -> None:
        """Add a metric, or report another value of it; metrics of this form have no type."""
        del metric_type
        ids = self.request_ids or {}
        request_id = ids[idx] if idx is not None and idx in ids else ",".join(ids.values())
        own = [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]
        self._add(name, value, unit, request_id, [*(dimensions or ()), *own])

    def _add(self, name: str, value: float, unit: str, request_id: str | None, dimensions: Sequence[Dimension]) -> None:
        key = "-".join([name, unit, str(request_id), *map(str, dimensions)])
        if key in self.cache:
            self.cache[key].update(value)
        else:
            self.cache[key] = Metric(name, value, unit, dimensions, request_id)
            self.store.append(self.cache[key])


add_submodules(
    __name__,
    {
        "adders": "COUNTER GAUGE MetricAdders",
        "caching_metric": "UNITS CachingMetric metric_line",
        "dimension": "Dimension",
        "metric": "Metric",
        "metric_cache_errors": "MetricsCacheTypeError MetricsCacheValueError MetricsCacheKeyError",
        "metric_cache_yaml_impl": "MetricsCacheYamlImpl",
        "metric_type_enum": "MetricTypes",
        "metrics_store": "MetricsStore",
    },
)
