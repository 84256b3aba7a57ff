"""GetMetricStatistics."""

import math
from typing import Any

from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import invalid_combination, invalid_value
from headrace.cloudwatch.metrics.members import check_period, metric_of, rounded_start_s
from headrace.cloudwatch.metrics.metric import Point
from headrace.cloudwatch.metrics.statistics import is_statistic, statistic
from headrace.state.records import Json

_MAX_POINTS = 1440


def get_metric_statistics(context: CloudWatchCall, params: dict[str, Any]) -> dict[str, Any]:
    """GetMetricStatistics; points come oldest first, which AWS does not promise."""
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
        "Datapoints": [_datapoint(one, simple, extended) for one in points if unit in (None, one.unit)],
    }


def _check(params: dict[str, Any], simple: list[str], extended: list[str]) -> None:
    if not simple and not extended:
        raise invalid_combination("At least one of the parameters Statistics and ExtendedStatistics must be specified.")
    for name in extended:
        if not is_statistic(name):
            raise invalid_value(
                f"The value {name} for parameter ExtendedStatistics is not supported. Ask for one like p99 or tm90."
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
    found: Json = {"Timestamp": point.start_s, "Unit": point.unit}
    found |= {name: statistic(point, name) for name in simple}
    others = {name: statistic(point, name) for name in extended}
    known = {name: value for name, value in others.items() if value is not None}
    return found | ({"ExtendedStatistics": known} if known else {})
