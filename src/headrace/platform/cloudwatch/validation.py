"""
CloudWatch's errors, and validation of metrics, periods, queries and alarms beyond what the service's model says. Pure.

The codes of errors are those of the query protocol. Source: botocore's model of cloudwatch, 2010-08-01.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from headrace.platform.cloudwatch.alarms.rules import COMPARES, AlarmDefinition, AlarmRule, rule_of
from headrace.platform.cloudwatch.math.queries import evaluate, query_from_json
from headrace.platform.cloudwatch.math.syntax import BadExpression
from headrace.platform.cloudwatch.metrics.metric import Metric
from headrace.platform.cloudwatch.metrics.statistics import is_statistic
from headrace.platform.state.records import Json
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.paging import Paginator


def invalid_value(message: str) -> AwsError:
    return AwsError("InvalidParameterValue", message)


def invalid_combination(message: str) -> AwsError:
    """Return the error for parameters that exclude each other."""
    return AwsError("InvalidParameterCombination", message)


def missing_parameter(name: str) -> AwsError:
    return AwsError("MissingParameter", f"The parameter {name} is required.")


def validation_error(message: str) -> AwsError:
    """Return the error of GetMetricData and of alarms, where other operations answer InvalidParameterValue."""
    return AwsError("ValidationError", message)


PAGES = Paginator(
    invalid_token=lambda: AwsError("InvalidNextToken", "The NextToken is not one of this list. Begin without it.")
)


_DAY_S = 86_400
_ALARM_PERIODS_S = (10, 20, 30)
_READ_PERIODS_S = (1, 5, *_ALARM_PERIODS_S)
_MAX_ALARM_QUERIES = 10
"""Queries of each kind in an alarm. Source: CloudWatch API reference, MetricDataQuery."""
_SINGLE_METRIC_MEMBERS = ("MetricName", "Namespace", "Statistic", "ExtendedStatistic", "Dimensions", "Period", "Unit")
_UNSUPPORTED_MEMBERS = ("ThresholdMetricId", "EvaluationCriteria", "EvaluationInterval", "WarmUpConfiguration")
_ARN = re.compile(r"arn:[^:\s]+:[^:\s]+:[^:]*:[^:]*:.+")
_QUERY_ID = re.compile(r"[a-z][A-Za-z0-9_]*", re.ASCII)


def metric_of(namespace: str, name: str, dimensions: Sequence[Json] | None) -> Metric:
    """Return the metric that a request names. Raises `AwsError`: a dimension is given twice."""
    metric = Metric.of(namespace, name, dimensions)
    for (first, _), (second, _) in pairwise(metric.dimensions):
        if first == second:
            raise invalid_value(f"The dimension {first} is given twice in Dimensions. Names of dimensions are unique.")
    return metric


def check_period(period_s: int) -> None:
    """Check the length of a period in which datapoints are read. Raises `AwsError`: CloudWatch has no such period."""
    if period_s not in _READ_PERIODS_S and period_s % 60:
        raise invalid_value(f"The parameter Period must be 1, 5, 10, 20, 30, or a multiple of 60. It is {period_s}.")


def parse_alarm(params: Json) -> AlarmDefinition:
    """Parse PutMetricAlarm's members by CloudWatch's rules. Raises `AwsError`, also for unsupported kinds."""
    _check_kind(params)
    for name in ("EvaluationPeriods", "Threshold", "ComparisonOperator"):
        if name not in params:
            raise missing_parameter(name)
    if not math.isfinite(params["Threshold"]):
        raise invalid_value(f"The value {params['Threshold']} for parameter Threshold is invalid.")
    if params.get("Metrics"):
        given = [name for name in _SINGLE_METRIC_MEMBERS if params.get(name)]
        if given:
            raise invalid_combination(f"Metrics cannot be given together with {', '.join(given)}.")
        _check_queries(params["Metrics"])
    else:
        _check_metric(params)
    definition = msgspec.convert(params, AlarmDefinition)
    try:
        _check_times(rule_of(definition))
    except ValueError as error:
        raise validation_error(str(error)) from error
    if params.get("EvaluateLowSampleCountPercentile", "evaluate") not in ("evaluate", "ignore"):
        raise validation_error("EvaluateLowSampleCountPercentile must be evaluate or ignore.")
    for action in definition.actions:
        if not _ARN.fullmatch(action):
            raise validation_error(f"Invalid arn syntax: {action}")
    return definition


def check_queries(queries: Sequence[Json]) -> None:
    """
    Check the rules that the queries of alarms and of GetMetricData share.

    Raises:
        AwsError: An id is invalid or used twice, or a query does not have exactly one of a metric and an expression.
    """
    seen: set[str] = set()
    for query in queries:
        name = query["Id"]
        if not _QUERY_ID.fullmatch(name):
            raise validation_error(
                f"The value {name} for parameter MetricDataQueries.member.Id is not matching the expected pattern "
                "^[a-z][a-zA-Z0-9_]*$."
            )
        if name in seen:
            raise validation_error(f"The id {name} is used for more than one query. Ids are unique in a call.")
        seen.add(name)
        if ("MetricStat" in query) == ("Expression" in query):
            raise validation_error(f"The query {name} must have either MetricStat or Expression, and not both.")
        if "MetricStat" in query:
            _check_stat(name, query["MetricStat"])


def _check_kind(params: Json) -> None:
    unsupported = [name for name in _UNSUPPORTED_MEMBERS if name in params]
    if "WallClockWindow" in (params.get("EvaluationWindow") or {}):
        unsupported.append("EvaluationWindow.WallClockWindow")
    if unsupported:
        raise invalid_value(f"{', '.join(unsupported)}: alarms of this kind are not supported by Headrace yet.")
    comparison = params.get("ComparisonOperator")
    if comparison is not None and comparison not in COMPARES:
        raise invalid_value(f"{comparison} is for anomaly detection, which Headrace does not support.")


def _check_metric(params: Json) -> None:
    for name in ("MetricName", "Namespace", "Period"):
        if name not in params:
            raise missing_parameter(name)
    statistics = [name for name in ("Statistic", "ExtendedStatistic") if name in params]
    if len(statistics) != 1:
        raise invalid_combination("Exactly one of Statistic and ExtendedStatistic must be specified.")
    extended = params.get("ExtendedStatistic")
    if extended is not None and not is_statistic(extended):
        raise invalid_value(f"The value {extended} for parameter ExtendedStatistic is not supported.")
    metric_of(params["Namespace"], params["MetricName"], params.get("Dimensions"))


def _check_queries(queries: Sequence[Json]) -> None:
    for member in ("MetricStat", "Expression"):
        if (number := sum(member in query for query in queries)) > _MAX_ALARM_QUERIES:
            raise validation_error(
                f"Metrics has {number} queries with {member}; expected at most {_MAX_ALARM_QUERIES}."
            )
    check_queries(queries)
    watched = [query for query in queries if query.get("ReturnData", True)]
    if len(watched) != 1:
        raise validation_error(
            f"Exactly one element of the metrics list should return data. {len(watched)} elements do: set ReturnData "
            "to false for all others."
        )
    try:
        parsed = [query_from_json(query) for query in queries]
        found = evaluate(parsed, lambda *_, **__: (), start_s=0.0, end_s=60.0)
    except BadExpression as error:
        raise validation_error(f"Error in expression: {error}") from error
    if len(found[watched[0]["Id"]]) != 1:
        raise validation_error("The expression that the alarm watches must return a single time series.")


def _check_stat(name: str, stat: Json) -> None:
    metric = stat["Metric"]
    for member in ("Namespace", "MetricName"):
        if member not in metric:
            raise missing_parameter(f"MetricDataQueries.{name}.MetricStat.Metric.{member}")
    metric_of(metric["Namespace"], metric["MetricName"], metric.get("Dimensions"))
    if not is_statistic(stat["Stat"]):
        raise invalid_value(f"The value {stat['Stat']} for parameter Stat of the query {name} is not supported.")


def _check_times(rule: AlarmRule) -> None:
    period_s, number = rule.period_s, rule.evaluation_periods
    if period_s not in _ALARM_PERIODS_S and period_s % 60:
        raise validation_error(f"Period must be 10, 20, 30 or a multiple of 60. It is {period_s}.")
    longest_s = _DAY_S if period_s < 3600 else 7 * _DAY_S
    if number * period_s > longest_s:
        raise validation_error(
            f"Metrics cannot be checked across more than {longest_s} seconds: EvaluationPeriods * Period is "
            f"{number * period_s}."
        )
