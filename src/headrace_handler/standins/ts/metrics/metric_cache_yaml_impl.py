"""`ctx.metrics`: the metrics of a model, from a file and as handlers add them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .adders import COUNTER, MetricAdders
from .caching_metric import CachingMetric
from .dimension import Dimension
from .metric_cache_errors import MetricsCacheKeyError, MetricsCacheTypeError
from .metric_type_enum import MetricTypes


class MetricsCacheYamlImpl(MetricAdders):
    """The metrics of a model by type and name."""

    def __init__(self, config_file_path: str) -> None:
        """
        Read a file of metrics.

        Args:
            config_file_path: a file with `model_metrics`, in YAML or JSON.
        """
        self.config_file_path = config_file_path
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {}
        self.model_name: str | None = None
        self.request_ids: Mapping[int, str] | str | None = None

    def initialize_cache(self) -> None:
        """Create the metrics that the file lists."""
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

        Args:
            name: the metric's name.
            value: the value.
            unit: `ms`, `percent`, `count`, `MB`, or another name.
            idx: the index of the request in the batch; None: all requests.
            dimensions: besides the model's name and the level.
            metric_type: the type.
        """
        self._report(metric_type, name, value, unit, self._request_id(idx), dimensions)

    def add_error(self, name: str, value: float, dimensions: Sequence[Dimension] = ()) -> None:
        self._report(COUNTER, name, value, "", "", dimensions)

    def get_metric(self, metric_name: str, metric_type: MetricTypes = COUNTER) -> CachingMetric:
        """
        Return a metric.

        Raises:
            MetricsCacheKeyError: there is none.
        """
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
