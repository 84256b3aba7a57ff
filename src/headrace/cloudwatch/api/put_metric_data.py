"""Handler of PutMetricData."""

import math
from collections import defaultdict
from collections.abc import Sequence

from headrace.cloudwatch.api.context import CloudWatchCall
from headrace.cloudwatch.errors import invalid_combination, invalid_value, missing_parameter
from headrace.cloudwatch.metrics.metric import Metric, Point
from headrace.cloudwatch.validation import metric_of
from headrace.state.records import Json

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
        raise invalid_value(f"The value {_rendered(value)} for parameter {where} is invalid.")
    return float(value)


def _rendered(value: float) -> str:
    """Render NaN and infinities as AWS does."""
    if math.isnan(value):
        return "NaN"
    return f"{value}".replace("inf", "Infinity")
