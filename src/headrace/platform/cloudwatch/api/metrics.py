"""Handlers of the operations that read metrics: ListMetrics, GetMetricStatistics and GetMetricData."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from headrace.platform.cloudwatch.api.context import CloudWatchCall
from headrace.platform.cloudwatch.math.queries import evaluate, query_from_json
from headrace.platform.cloudwatch.math.syntax import BadExpression
from headrace.platform.cloudwatch.math.values import TimeSeries
from headrace.platform.cloudwatch.metrics.metric import Metric, Point
from headrace.platform.cloudwatch.metrics.statistics import is_statistic, statistic
from headrace.platform.cloudwatch.validation import (
    PAGES,
    check_period,
    check_queries,
    invalid_combination,
    invalid_value,
    metric_of,
    missing_parameter,
    validation_error,
)
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.paging import Key

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

    def key(metric: Metric) -> Key:
        return (metric.namespace, metric.name, *(part for pair in metric.dimensions for part in pair))

    chosen, token = PAGES.page(fitting, params, listing="metrics", key=key, size=_PAGE_SIZE)
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


_MAX_DATA = 1000
_MAX_VALUES = 150
_MAX_VALUE = 2.0**360
_MAX_AGE_S = 14 * 86_400
_MAX_AHEAD_S = 2 * 3600
_VALUE_MEMBERS = ("Value", "Values", "StatisticValues")


def put_metric_data(context: CloudWatchCall, params: Json) -> Json:
    """Answer PutMetricData: validate all data, then record them."""
    namespace = params["Namespace"]
    if context.is_strict and namespace.startswith("AWS/"):
        raise invalid_value("The value AWS/ for parameter Namespace is invalid.")
    data = [*(params.get("MetricData") or [])]
    for entity in params.get("EntityMetricData") or []:
        data += entity.get("MetricData") or []
    if not data:
        raise missing_parameter("MetricData")
    if len(data) > _MAX_DATA:
        raise invalid_value(f"The collection MetricData must not have a size greater than {_MAX_DATA}.")
    points = [_parse(context, namespace, datum, number) for number, datum in enumerate(data, 1)]
    for metric, point in points:
        if point.count:
            context.series.put_point(metric, point)
    return {}


def _parse(context: CloudWatchCall, namespace: str, datum: Json, number: int) -> tuple[Metric, Point]:
    where = f"MetricData.member.{number}"
    metric = metric_of(namespace, datum["MetricName"], datum.get("Dimensions"))
    if datum.get("StorageResolution", 60) not in (1, 60):
        raise invalid_value(f"The parameter {where}.StorageResolution must be 1 or 60.")
    at_s, unit = _time_of(context, datum, where), datum.get("Unit", "None")
    given = [name for name in _VALUE_MEMBERS if name in datum]
    if not given:
        raise missing_parameter(f"{where}.Value")
    if len(given) > 1:
        names = " and ".join(f"{where}.{name}" for name in given)
        raise invalid_combination(f"The parameters {names} are mutually exclusive and you have specified both.")
    if given == ["StatisticValues"]:
        return metric, _of_statistics(datum["StatisticValues"], f"{where}.StatisticValues", at_s=at_s, unit=unit)
    if given == ["Value"]:
        value = _in_bounds(datum["Value"], f"{where}.Value")
        return metric, _of_values([value], [1.0], where, at_s=at_s, unit=unit)
    counts = datum.get("Counts", [1.0] * len(datum["Values"]))
    return metric, _of_values(datum["Values"], counts, where, at_s=at_s, unit=unit)


def _time_of(context: CloudWatchCall, datum: Json, where: str) -> float:
    at_s = float(datum.get("Timestamp", context.now_s))
    if not context.now_s - _MAX_AGE_S <= at_s <= context.now_s + _MAX_AHEAD_S:
        raise invalid_value(
            f"The parameter {where}.Timestamp must specify a time within the past two weeks, and no more than two "
            "hours in the future."
        )
    return at_s


def _of_values(values: Sequence[float], counts: Sequence[float], where: str, *, at_s: float, unit: str) -> Point:
    if not values:
        raise missing_parameter(f"{where}.Values")
    if len(values) > _MAX_VALUES:
        raise invalid_value(f"The collection {where}.Values must not have a size greater than {_MAX_VALUES}.")
    if len(counts) != len(values):
        raise invalid_value(f"The parameters {where}.Values and {where}.Counts must be of the same size.")
    counted: dict[float, float] = defaultdict(float)
    for value, count in zip(values, counts, strict=True):
        if _in_bounds(count, f"{where}.Counts") < 0:
            raise invalid_value(f"The parameter {where}.Counts must not have negative values.")
        if count:
            counted[_in_bounds(value, f"{where}.Values")] += count
    return Point(
        start_s=at_s,
        count=sum(counted.values()),
        total=sum(value * count for value, count in counted.items()),
        minimum=min(counted, default=0.0),
        maximum=max(counted, default=0.0),
        values=tuple(sorted(counted.items())),
        unit=unit,
    )


def _of_statistics(given: Json, where: str, *, at_s: float, unit: str) -> Point:
    names = ("SampleCount", "Sum", "Minimum", "Maximum")
    count, total, minimum, maximum = (_in_bounds(given[name], f"{where}.{name}") for name in names)
    if count <= 0:
        raise invalid_value(f"The parameter {where}.SampleCount must be greater than 0.")
    if minimum > maximum:
        raise invalid_value(f"The parameter {where}.Minimum must not be greater than {where}.Maximum.")
    values = ((minimum, count),) if minimum == maximum else ()  # the only case with known percentiles
    return Point(start_s=at_s, count=count, total=total, minimum=minimum, maximum=maximum, values=values, unit=unit)


def _in_bounds(value: float, where: str) -> float:
    if not -_MAX_VALUE <= value <= _MAX_VALUE:
        shown = "NaN" if math.isnan(value) else f"{value}".replace("inf", "Infinity")  # as AWS writes them
        raise invalid_value(f"The value {shown} for parameter {where} is invalid.")
    return float(value)
