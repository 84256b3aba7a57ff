"""ListMetrics."""

import math
from typing import Any

from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import PAGES
from headrace.cloudwatch.metrics.members import metric_json
from headrace.cloudwatch.metrics.metric import Metric
from headrace.state.records import Json
from headrace.wire.aws.paging import Key

_PAGE_SIZE = 500
_RECENT_S = 3 * 3600


def list_metrics(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """ListMetrics: filters by namespace, name, dimensions, and whether something came within three hours."""
    wanted = params.get("Dimensions") or []
    since_s = context.now_s - _RECENT_S if "RecentlyActive" in params else -math.inf
    found = context.series.list(namespace=params.get("Namespace"), name=params.get("MetricName"), since_s=since_s)
    fitting = [metric for metric in found if _has(metric, wanted)]
    chosen, token = PAGES.page(fitting, params, listing="metrics", key=_key, size=_PAGE_SIZE)
    return {"Metrics": [metric_json(one) for one in chosen], **token}


def _has(metric: Metric, wanted: list[Json]) -> bool:
    dimensions = dict(metric.dimensions)
    return all(one["Name"] in dimensions and one.get("Value") in (None, dimensions[one["Name"]]) for one in wanted)


def _key(metric: Metric) -> Key:
    return (metric.namespace, metric.name, *(part for pair in metric.dimensions for part in pair))
