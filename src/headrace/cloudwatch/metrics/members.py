"""The members of calls that name a metric, a period and times."""

from collections.abc import Sequence

from headrace.cloudwatch.errors import invalid_value
from headrace.cloudwatch.metrics.metric import Metric
from headrace.state.records import Json

_DAY_S = 86_400
_SHORT_PERIODS_S = (1, 5, 10, 20, 30)


def metric_of(namespace: str, name: str, dimensions: Sequence[Json] | None) -> Metric:
    """
    The metric that is meant.

    Raises:
        AwsError: a dimension stands there twice.
    """
    pairs = sorted((one["Name"], one["Value"]) for one in dimensions or ())
    names = [pair[0] for pair in pairs]
    twice = next((one for number, one in enumerate(names) if one in names[:number]), None)
    if twice is not None:
        raise invalid_value(f"The dimension {twice} stands in Dimensions twice. Names of dimensions are unique.")
    return Metric(namespace=namespace, name=name, dimensions=tuple(pairs))


def metric_json(metric: Metric) -> Json:
    """A metric as the API has it."""
    return {
        "Namespace": metric.namespace,
        "MetricName": metric.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in metric.dimensions],
    }


def check_period(period_s: int) -> None:
    """
    Hold a period to the rule.

    Raises:
        AwsError: it is none that CloudWatch has.
    """
    if period_s not in _SHORT_PERIODS_S and period_s % 60:
        raise invalid_value(f"The parameter Period must be 1, 5, 10, 20, 30, or a multiple of 60. It is {period_s}.")


def rounded_start_s(start_s: float, *, period_s: int, now_s: float) -> float:
    """
    The time from which points are returned: the period that holds the start, or the span that is kept of its age.

    Source: CloudWatch API reference, GetMetricStatistics, StartTime.
    """
    age_s = now_s - start_s
    kept_s = 1 if age_s <= 15 * _DAY_S else 300 if age_s <= 63 * _DAY_S else 3600
    step_s = max(period_s, kept_s)
    return start_s // step_s * step_s
