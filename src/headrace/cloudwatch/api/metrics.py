"""Handlers of the operations that read metrics: ListMetrics, GetMetricStatistics and GetMetricData."""

import math
import re
from collections.abc import Mapping, Sequence

from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import PAGES, invalid_combination, invalid_value, validation_error
from headrace.cloudwatch.math.queries import evaluate, query_from_json
from headrace.cloudwatch.math.syntax import BadExpression
from headrace.cloudwatch.math.values import TimeSeries
from headrace.cloudwatch.metrics.metric import Metric, Point
from headrace.cloudwatch.metrics.statistics import is_statistic, statistic
from headrace.cloudwatch.validation import check_period, check_queries, metric_of
from headrace.state.records import Json
from headrace.wire.aws.paging import Key

_PAGE_SIZE = 500
_RECENT_S = 3 * 3600
_DAY_S = 86_400
_MAX_POINTS = 1440
"""Datapoints of GetMetricStatistics."""
_MAX_QUERIES = 500
_MAX_DATA_POINTS = 100_800
"""Datapoints on a page of GetMetricData."""
_TIMEZONE = re.compile(r"[+-]\d{4}", re.ASCII)


def list_metrics(context: CloudWatchCall, params: Json) -> Json:
    """Answer ListMetrics: filter by namespace, name, dimensions and recent activity (three hours)."""
    filters = params.get("Dimensions") or []
    since_s = context.now_s - _RECENT_S if "RecentlyActive" in params else -math.inf
    found = context.series.list(namespace=params.get("Namespace"), name=params.get("MetricName"), since_s=since_s)
    fitting = [metric for metric in found if _fits(metric, filters)]
    chosen, token = PAGES.page(fitting, params, listing="metrics", key=_key, size=_PAGE_SIZE)
    return {
        "Metrics": [
            {
                "Namespace": metric.namespace,
                "MetricName": metric.name,
                "Dimensions": [{"Name": name, "Value": value} for name, value in metric.dimensions],
            }
            for metric in chosen
        ],
        **token,
    }


def get_metric_statistics(context: CloudWatchCall, params: Json) -> Json:
    """Answer GetMetricStatistics; points are returned oldest first, which AWS does not promise."""
    simple, extended = params.get("Statistics") or [], params.get("ExtendedStatistics") or []
    _check_statistics(params, simple, extended)
    period_s = params["Period"]
    points = context.series.read(
        metric_of(params["Namespace"], params["MetricName"], params.get("Dimensions")),
        start_s=_rounded_start_s(params["StartTime"], period_s=period_s, now_s=context.now_s),
        end_s=params["EndTime"],
        period_s=period_s,
    )
    unit = params.get("Unit")
    return {
        "Label": params["MetricName"],
        "Datapoints": [_datapoint(point, simple, extended) for point in points if unit in (None, point.unit)],
    }


def get_metric_data(context: CloudWatchCall, params: Json) -> Json:
    """Answer GetMetricData; an expression that yields several series has several results under its id."""
    queries = params["MetricDataQueries"]
    _check_data(params, queries)
    found = _evaluate(context, params, queries)
    series = [(query["Id"], line) for query in queries for line in found.get(query["Id"], ())]
    begin = PAGES.begin(params, listing="metric data")
    end = begin + params.get("MaxDatapoints", _MAX_DATA_POINTS)
    is_descending = params.get("ScanBy", "TimestampDescending") == "TimestampDescending"
    results, position = [], 0
    for name, line in series:
        points = line.points[::-1] if is_descending else line.points
        results.append(_result(name, line.label, points, begin=begin - position, end=end - position))
        position += len(points)
    token = PAGES.token_at(end, listing="metric data") if position > end else {}
    return {"MetricDataResults": results, "Messages": [], **token}


def _fits(metric: Metric, filters: list[Json]) -> bool:
    dimensions = dict(metric.dimensions)
    return all(
        wanted["Name"] in dimensions and wanted.get("Value") in (None, dimensions[wanted["Name"]]) for wanted in filters
    )


def _key(metric: Metric) -> Key:
    return (metric.namespace, metric.name, *(part for pair in metric.dimensions for part in pair))


def _check_statistics(params: Json, simple: list[str], extended: list[str]) -> None:
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


def _check_data(params: Json, queries: Sequence[Json]) -> None:
    if not queries:
        raise validation_error("The parameter MetricDataQueries must have at least one query.")
    if len(queries) > _MAX_QUERIES:
        raise validation_error(f"The collection MetricDataQueries must not have a size greater than {_MAX_QUERIES}.")
    check_queries(queries)
    for query in queries:
        check_period(query["MetricStat"]["Period"] if "MetricStat" in query else query.get("Period", 60))
    if params["StartTime"] >= params["EndTime"]:
        raise validation_error("The parameter StartTime must be less than the parameter EndTime.")
    if params.get("MaxDatapoints", 1) < 1:
        raise validation_error("The parameter MaxDatapoints must be greater than 0.")
    timezone = (params.get("LabelOptions") or {}).get("Timezone", "+0000")
    if not _TIMEZONE.fullmatch(timezone):
        raise validation_error(f"LabelOptions.Timezone is {timezone[:20]!r}; expected an offset such as +0130.")


def _evaluate(context: CloudWatchCall, params: Json, queries: Sequence[Json]) -> Mapping[str, tuple[TimeSeries, ...]]:
    try:
        return evaluate(
            [query_from_json(query) for query in queries],
            context.series.read,
            start_s=_rounded_start_s(params["StartTime"], period_s=1, now_s=context.now_s),
            end_s=params["EndTime"],
        )
    except BadExpression as error:
        raise validation_error(f"Error in expression: {error}") from error


def _result(name: str, label: str, points: Sequence[tuple[float, float]], *, begin: int, end: int) -> Json:
    """Render the part of a series on this page; `begin` and `end` count from the series' first point."""
    chosen = points[max(begin, 0) : max(end, 0)]
    return {
        "Id": name,
        "Label": label,
        "Timestamps": [at_s for at_s, _ in chosen],
        "Values": [value for _, value in chosen],
        "StatusCode": "PartialData" if len(points) > max(end, 0) else "Complete",
    }


def _rounded_start_s(start_s: float, *, period_s: int, now_s: float) -> float:
    """
    Return the start of the period that contains `start_s`, at the resolution kept for points of its age.

    Source: CloudWatch API reference, GetMetricStatistics, StartTime.
    """
    age_s = now_s - start_s
    kept_s = 1 if age_s <= 15 * _DAY_S else 300 if age_s <= 63 * _DAY_S else 3600
    step_s = max(period_s, kept_s)
    return start_s // step_s * step_s
