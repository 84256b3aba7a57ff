"""The two CloudWatch alarms that a target-tracking policy has: what they watch, how they are called. Pure."""

from typing import Any

from headrace.cloudwatch.alarms.validation import check_alarm
from headrace.control.autoscaling.planning import target_tracking
from headrace.control.autoscaling.planning.target_tracking import Side
from headrace.control.autoscaling.planning.targets import (
    COMPONENT_DIMENSION,
    VARIANT_DIMENSION,
    TargetKey,
    policy_arn,
    read_key,
)
from headrace.state.records import Json, RawRecord
from headrace.wire.aws.errors import AwsError, validation_error
from headrace.wire.aws.scope import AwsScope

TRACKING = "TargetTrackingScalingPolicyConfiguration"
_NAMESPACE = "AWS/SageMaker"
_PERIOD_S = 60
_PREDEFINED = {
    "SageMakerVariantInvocationsPerInstance": (VARIANT_DIMENSION, "InvocationsPerInstance", "Sum"),
    "SageMakerInferenceComponentInvocationsPerCopy": (COMPONENT_DIMENSION, "InvocationsPerCopy", "Sum"),
    "SageMakerVariantConcurrentRequestsPerModelHighResolution": (
        VARIANT_DIMENSION,
        "ConcurrentRequestsPerModel",
        "Average",
    ),
    "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution": (
        COMPONENT_DIMENSION,
        "ConcurrentRequestsPerCopy",
        "Average",
    ),
}
"""Predefined metric → the dimension that it is for, the metric's name, its statistic."""


def watched_by(key: TargetKey, config: Json) -> dict[str, Any]:
    """
    The members of an alarm that say what a policy measures.

    Args:
        key: of the policy's target.
        config: TargetTrackingScalingPolicyConfiguration.

    Raises:
        AwsError: no metric, one that is not for this dimension, or a specification that contradicts itself.
    """
    predefined = config.get("PredefinedMetricSpecification")
    if predefined:
        return _predefined(key, predefined)
    custom: Json = config.get("CustomizedMetricSpecification") or {}
    queries = custom.get("Metrics")
    if queries:
        single = [name for name in ("MetricName", "Namespace", "Statistic", "Dimensions", "Unit") if custom.get(name)]
        if single:
            raise validation_error(f"Metrics cannot be given together with {', '.join(single)}. Give one of them.")
        return {"Metrics": _queries(queries)}
    missing = [name for name in ("MetricName", "Namespace", "Statistic") if not custom.get(name)]
    if missing:
        raise validation_error(f"CustomizedMetricSpecification has no {missing[0]}, and no Metrics. Give one of them.")
    unit = {"Unit": custom["Unit"]} if "Unit" in custom else {}
    return {
        "MetricName": custom["MetricName"],
        "Namespace": custom["Namespace"],
        "Dimensions": custom.get("Dimensions") or [],
        "Statistic": custom["Statistic"],
        **unit,
    }


def alarm_names(record: RawRecord) -> dict[Side, str]:
    """What the alarms of a policy are called: High, then Low if it may scale in; other policies make none."""
    if record.spec["PolicyType"] != "TargetTrackingScaling":
        return {}
    start, ids = f"TargetTracking-{record.spec['ResourceId']}-Alarm", record.spec["alarms"]
    names: dict[Side, str] = {"High": f"{start}High-{ids['high']}"}
    if not record.spec[TRACKING].get("DisableScaleIn"):
        names["Low"] = f"{start}Low-{ids['low']}"
    return names


def alarm_specs(aws_scope: AwsScope, record: RawRecord) -> dict[str, Json]:
    """What the alarms of a target-tracking policy shall be, by name."""
    specs = _specs(read_key(record.spec), record.spec[TRACKING])
    arn = policy_arn(aws_scope, record)
    shared = {
        "AlarmDescription": f"DO NOT EDIT OR DELETE. For TargetTrackingScaling policy {arn}.",
        "ActionsEnabled": True,
        "AlarmActions": [arn],
        "OKActions": [],
        "InsufficientDataActions": [],
        "owner": arn,
    }
    return {name: {"AlarmName": name, **shared, **specs[side]} for side, name in alarm_names(record).items()}


def _specs(key: TargetKey, config: Json) -> dict[Side, Json]:
    predefined = (config.get("PredefinedMetricSpecification") or {}).get("PredefinedMetricType")
    return target_tracking.alarm_specs(
        target_tracking.policy_from_json(config),
        watched_by(key, config),
        is_high_resolution=predefined in target_tracking.HIGH_RESOLUTION,
    )


def _predefined(key: TargetKey, predefined: Json) -> dict[str, Any]:
    kind = predefined["PredefinedMetricType"]
    dimension, metric, statistic = _PREDEFINED.get(kind, ("", "", ""))
    if dimension != key.dimension:
        fitting = [name for name, (its, _, _) in _PREDEFINED.items() if its == key.dimension]
        raise validation_error(
            f"The predefined metric {kind} is not for {key.dimension}. Those that are: {', '.join(fitting)}."
        )
    if predefined.get("ResourceLabel"):
        raise validation_error("You can't specify a resource label unless the metric type is ALBRequestCountPerTarget.")
    if key.component:
        dimensions = [{"Name": "InferenceComponentName", "Value": key.component}]
    else:
        dimensions = [{"Name": "EndpointName", "Value": key.endpoint}, {"Name": "VariantName", "Value": key.variant}]
    return {"MetricName": metric, "Namespace": _NAMESPACE, "Dimensions": dimensions, "Statistic": statistic}


def _queries(queries: list[Json]) -> list[Json]:
    """Queries of a policy as an alarm has them: with a period, one of them to be watched."""
    if sum(query.get("ReturnData", True) for query in queries) != 1:
        raise validation_error("Exactly one of Metrics must have ReturnData true (the default): it is what is tracked.")
    ids = [query["Id"] for query in queries]
    if len(set(ids)) < len(ids):
        raise validation_error("Two of Metrics have the same Id. Ids are unique.")
    return [_query(query) for query in queries]


def _query(query: Json) -> Json:
    if ("MetricStat" in query) == ("Expression" in query):
        raise validation_error(f"{query['Id']} of Metrics must have either MetricStat or Expression.")
    shown: Json = {"ReturnData": True, **query}
    if "MetricStat" in query:
        shown["MetricStat"] = {**query["MetricStat"], "Period": _PERIOD_S}
    return shown


def checked_tracking(key: TargetKey, config: Json) -> None:
    """
    Hold a target-tracking configuration to its rules.

    Raises:
        AwsError: ValidationException.
    """
    for member in ("ScaleOutCooldown", "ScaleInCooldown"):
        if config.get(member, 0) < 0:
            raise validation_error(f"{member} is {config[member]}; wanted: 0 seconds or more.")
    try:
        target_tracking.policy_from_json(config)
    except ValueError as error:
        raise AwsError("ValidationException", str(error)) from error
    for spec in _specs(key, config).values():
        try:
            check_alarm(spec)  # CloudWatch would refuse the alarm, and the policy would never act
        except AwsError as error:
            raise validation_error(str(error)) from error
