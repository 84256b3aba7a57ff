"""Members of requests that name a metric, a period or a time. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from headrace.cloudwatch.errors import invalid_value
from headrace.cloudwatch.metrics.metric import Metric
from headrace.state.records import Json

_DAY_S = 86_400
_SHORT_PERIODS_S = (1, 5, 10, 20, 30)


def metric_of(namespace: str, name: str, dimensions: Sequence[Json] | None) -> Metric:
    """
    Return the metric that a request names.

    Raises:
        AwsError: A dimension is given twice.
    """
    pairs = sorted((dimension["Name"], dimension["Value"]) for dimension in dimensions or ())
    for (first, _), (second, _) in pairwise(pairs):
        if first == second:
            raise invalid_value(f"The dimension {first} is given twice in Dimensions. Names of dimensions are unique.")
    return Metric(namespace=namespace, name=name, dimensions=tuple(pairs))


def metric_json(metric: Metric) -> Json:
    """Render a metric as the API does."""
    return {
        "Namespace": metric.namespace,
        "MetricName": metric.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in metric.dimensions],
    }


def check_period(period_s: int) -> None:
    """
    Check the length of a period.

    Raises:
        AwsError: CloudWatch has no such period.
    """
    if period_s not in _SHORT_PERIODS_S and period_s % 60:
        raise invalid_value(f"The parameter Period must be 1, 5, 10, 20, 30, or a multiple of 60. It is {period_s}.")


def rounded_start_s(start_s: float, *, period_s: int, now_s: float) -> float:
    """
    Return the start of the period that contains `start_s`, at the resolution kept for points of its age.

    Source: CloudWatch API reference, GetMetricStatistics, StartTime.
    """
    age_s = now_s - start_s
    kept_s = 1 if age_s <= 15 * _DAY_S else 300 if age_s <= 63 * _DAY_S else 3600
    step_s = max(period_s, kept_s)
    return start_s // step_s * step_s
