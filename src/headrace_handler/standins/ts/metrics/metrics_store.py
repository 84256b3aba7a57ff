"""The older form of `ctx.metrics`, which some handlers create themselves."""

from collections.abc import Mapping, Sequence

from .adders import COUNTER, MetricAdders
from .dimension import Dimension
from .metric import Metric
from .metric_type_enum import MetricTypes


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
