"""Handlers of ListMetrics and GetMetricStatistics."""

import math

from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import PAGES, invalid_combination, invalid_value
from headrace.cloudwatch.metrics.members import check_period, metric_json, metric_of, rounded_start_s
from headrace.cloudwatch.metrics.metric import Metric, Point
from headrace.cloudwatch.metrics.statistics import is_statistic, statistic
from headrace.state.records import Json
from headrace.wire.aws.paging import Key

_PAGE_SIZE = 500
_RECENT_S = 3 * 3600
_MAX_POINTS = 1440


def list_metrics(context: CloudWatchCall, params: Json) -> Json:
    """ListMetrics: filter by namespace, name, dimensions and recent activity (three hours)."""
    filters = params.get("Dimensions") or []
    since_s = context.now_s - _RECENT_S if "RecentlyActive" in params else -math.inf
    found = context.series.list(namespace=params.get("Namespace"), name=params.get("MetricName"), since_s=since_s)
    fitting = [metric for metric in found if _fits(metric, filters)]
    chosen, token = PAGES.page(fitting, params, listing="metrics", key=_key, size=_PAGE_SIZE)
    return {"Metrics": [metric_json(metric) for metric in chosen], **token}


def get_metric_statistics(context: CloudWatchCall, params: Json) -> Json:
    """GetMetricStatistics; points are returned oldest first, which AWS does not promise."""
    simple, extended = params.get("Statistics") or [], params.get("ExtendedStatistics") or []
    _check(params, simple, extended)
    period_s = params["Period"]
    points = context.series.read(
        metric_of(params["Namespace"], params["MetricName"], params.get("Dimensions")),
        start_s=rounded_start_s(params["StartTime"], period_s=period_s, now_s=context.now_s),
        end_s=params["EndTime"],
        period_s=period_s,
    )
    unit = params.get("Unit")
    return {
        "Label": params["MetricName"],
        "Datapoints": [_datapoint(point, simple, extended) for point in points if unit in (None, point.unit)],
    }


def _fits(metric: Metric, filters: list[Json]) -> bool:
    dimensions = dict(metric.dimensions)
    return all(
        wanted["Name"] in dimensions and wanted.get("Value") in (None, dimensions[wanted["Name"]]) for wanted in filters
    )


def _key(metric: Metric) -> Key:
    return (metric.namespace, metric.name, *(part for pair in metric.dimensions for part in pair))


def _check(params: Json, simple: list[str], extended: list[str]) -> None:
    if not simple and not extended:
        raise invalid_combination("At least one of the parameters Statistics and ExtendedStatistics must be specified.")
    for name in extended:
        if not is_statistic(name):
            raise invalid_value(
                f"The value {name} for parameter ExtendedStatistics is not supported. Use one like p99 or tm90."
            )
    period_s = params["Period"]
    check_period(period_s)
    if params["StartTime"] >= params["EndTime"]:
        raise invalid_value("The parameter StartTime must be less than the parameter EndTime.")
    num_points = math.ceil((params["EndTime"] - params["StartTime"]) / period_s)
    if num_points > _MAX_POINTS:
        raise invalid_combination(
            f"You have requested up to {num_points:,} datapoints, which exceeds the limit of {_MAX_POINTS:,}. You may "
            "reduce the datapoints requested by increasing Period, or decreasing the time range."
        )


def _datapoint(point: Point, simple: list[str], extended: list[str]) -> Json:
    rendered: Json = {"Timestamp": point.start_s, "Unit": point.unit}
    rendered |= {name: statistic(point, name) for name in simple}
    values = {name: statistic(point, name) for name in extended}
    known = {name: value for name, value in values.items() if value is not None}
    return rendered | ({"ExtendedStatistics": known} if known else {})
