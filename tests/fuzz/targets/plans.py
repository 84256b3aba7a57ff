"""Expressions and policies of CloudWatch and Application Auto Scaling, and tokens of pages that clients return."""

import json

from headrace.platform.autoscaling.api.policies import _parse as parse_policy
from headrace.platform.autoscaling.planning.schedule import Window, next_time, parse
from headrace.platform.autoscaling.planning.step_scaling import adjusted, step_for
from headrace.platform.autoscaling.planning.targets import TargetKey
from headrace.platform.cloudwatch.math.queries import Query, evaluate
from headrace.platform.cloudwatch.math.syntax import BadExpression
from headrace.platform.cloudwatch.validation import parse_alarm
from headrace.platform.cluster.log_streams import read_token
from headrace.serving.wire.aws import calls
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.aws.http import HttpRequest
from tests.fuzz.target import Target
from tests.platform.cloudwatch.test_metric_math import T0, M, series_of

_KEY = TargetKey.parse("endpoint/e/variant/v", "sagemaker:variant:DesiredInstanceCount")


def _math(data):
    """Queries by line; each may refer to the others."""
    series, queries = series_of(**M)
    lines = data.decode("utf-8", "replace").split("\n")[:10]
    asked = [*queries, *(Query(id=f"e{number}", expression=line) for number, line in enumerate(lines))]
    evaluate(asked, series.read, start_s=T0, end_s=T0 + 240)


def _schedule(data):
    """A schedule on the first line, a time zone on the second."""
    expression, _, zone = data.decode("utf-8", "replace").partition("\n")
    schedule = parse(expression, zone or None)
    next_time(schedule, after_s=T0, window=Window(created_s=T0))


def _params(target, data):
    request = HttpRequest("POST", "/", "", {"x-amz-target": target}, data)
    return calls.parse(request).params


def _policy(data):
    """A scaling policy as PutScalingPolicy takes it; step policies answer any value."""
    spec = parse_policy(_KEY, _params("AnyScaleFrontendService.PutScalingPolicy", data), None)
    if not spec.is_target_tracking:
        for value in (-1e300, 0.0, 50.0, 1e300):
            step = step_for(spec.policy, value=value, threshold=50.0)
            assert step is None or adjusted(spec.policy, step, capacity=3) >= 0


def _alarm(data):
    parse_alarm(_params("GraniteServiceVersion20100801.PutMetricAlarm", data))


def _log_token(data):
    read_token(data.decode("utf-8", "replace"))


_STEPS = {
    "PolicyName": "p",
    "ServiceNamespace": "sagemaker",
    "ResourceId": "endpoint/e/variant/v",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
    "PolicyType": "StepScaling",
    "StepScalingPolicyConfiguration": {
        "AdjustmentType": "PercentChangeInCapacity",
        "MinAdjustmentMagnitude": 1,
        "Cooldown": 60,
        "MetricAggregationType": "Maximum",
        "StepAdjustments": [
            {"MetricIntervalLowerBound": 0, "MetricIntervalUpperBound": 10, "ScalingAdjustment": 10},
            {"MetricIntervalLowerBound": 10, "ScalingAdjustment": 30},
        ],
    },
}
_TRACKING = {
    **{key: value for key, value in _STEPS.items() if not key.startswith("Step")},
    "PolicyType": "TargetTrackingScaling",
    "TargetTrackingScalingPolicyConfiguration": {
        "TargetValue": 70.0,
        "ScaleOutCooldown": 60,
        "CustomizedMetricSpecification": {
            "Metrics": [
                {
                    "Id": "m1",
                    "MetricStat": {"Metric": {"Namespace": "n", "MetricName": "m"}, "Stat": "Sum"},
                    "ReturnData": False,
                },
                {"Id": "e", "Expression": "m1 / 2", "Label": "x"},
            ]
        },
    },
}
_ALARM = {
    "AlarmName": "a",
    "ComparisonOperator": "GreaterThanThreshold",
    "EvaluationPeriods": 2,
    "DatapointsToAlarm": 1,
    "Threshold": 1.0,
    "TreatMissingData": "notBreaching",
    "Namespace": "n",
    "MetricName": "m",
    "Period": 60,
    "Statistic": "Average",
    "Dimensions": [{"Name": "EndpointName", "Value": "e"}],
    "AlarmActions": ["arn:aws:sns:us-east-1:000000000000:x"],
}
_POLICY_WORDS = (
    b"PredefinedMetricSpecification",
    b"DisableScaleIn",
    b"ExactCapacity",
    b"ChangeInCapacity",
    b"ResourceLabel",
)

TARGETS = (
    Target(
        "metric-math",
        _math,
        (BadExpression,),
        lambda: {
            "rules": b'IF(m2 > 5, m1, 0) / FILL(m1, LINEAR)\ne0 ^ 2 ^ -m1\nSUM(METRICS("m")) * RATE(m1)',
            "lists": b"MAX([m1, m2]) - AVG([e1]) AND m1 >= 1\nSTDDEV(METRICS()) + LOG10(PERIOD(m1))",
        },
        words=(
            b"m1",
            b"e1",
            b"e0",
            b"(",
            b")",
            b"^",
            b"1e308",
            b"- ",
            b"FILL(",
            b"REPEAT",
            b"METRICS()",
            b"<=",
            b"||",
            b'"',
        ),
    ),
    Target(
        "schedule",
        _schedule,
        (ValueError,),
        lambda: {
            "cron": b"cron(0/15 8-18 ? * MON-FRI 2024-2030)\nEurope/Berlin",
            "last": b"cron(0 10 L * ? *)\nUTC",
            "nearest": b"cron(0 10 15W * ? *)\nAsia/Kolkata",
            "nth": b"cron(5 10 ? * 6#3 *)",
            "at": b"at(2026-02-01T10:00:00)\nAmerica/New_York",
            "rate": b"rate(5 minutes)",
        },
        words=(
            b"?",
            b"L",
            b"W",
            b"#5",
            b"/0",
            b"*/1",
            b"9999",
            b"1970",
            b"2199",
            b"../../etc/passwd",
            b"\n",
            b"31",
            b"FEB",
        ),
    ),
    Target(
        "scaling-policy",
        _policy,
        (AwsError,),
        lambda: {"steps": json.dumps(_STEPS).encode(), "tracking": json.dumps(_TRACKING).encode()},
        words=_POLICY_WORDS,
        is_json=True,
    ),
    Target("alarm", _alarm, (AwsError,), lambda: {"metric": json.dumps(_ALARM).encode()}, is_json=True),
    Target(
        "log-token",
        _log_token,
        (ValueError,),
        lambda: {"one": b"W3siYSI6IDF9LCA1LCAidyJd"},
        suite_cases=400,
    ),
)
