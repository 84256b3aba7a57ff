"""Scaling policies: their records, and the triggers that their alarms give them. Pure."""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from headrace.platform.autoscaling.planning import step_scaling, target_tracking
from headrace.platform.autoscaling.planning.decision import Trigger
from headrace.platform.autoscaling.planning.step_scaling import StepScaling
from headrace.platform.autoscaling.planning.target_tracking import Side, TargetTracking
from headrace.platform.autoscaling.planning.targets import (
    COMPONENT_DIMENSION,
    VARIANT_DIMENSION,
    TargetKey,
    TargetMembers,
    child_arn,
)
from headrace.platform.cloudwatch.alarms.records import AlarmSpec, EvaluatedAlarm
from headrace.platform.cloudwatch.validation import parse_alarm
from headrace.platform.state.records import Json, Kind, NoStatus, Record, RecordPart
from headrace.serving.wire.aws.errors import AwsError, validation_error
from headrace.serving.wire.aws.scope import AwsScope

PolicyType = Literal["StepScaling", "TargetTrackingScaling"]

STEPS = "StepScalingPolicyConfiguration"
TRACKING = "TargetTrackingScalingPolicyConfiguration"
CONFIGURATIONS: Final[dict[PolicyType, str]] = {"StepScaling": STEPS, "TargetTrackingScaling": TRACKING}
"""Policy type → the member that holds its configuration."""


class AlarmIds(RecordPart, frozen=True, kw_only=True):
    """The unique parts of the names of a target-tracking policy's alarms."""

    high: str
    low: str


class PolicySpec(TargetMembers, frozen=True, kw_only=True, rename="pascal"):
    policy_name: str
    policy_type: PolicyType
    step_scaling: Json | None = msgspec.field(default=None, name=STEPS)
    target_tracking: Json | None = msgspec.field(default=None, name=TRACKING)
    alarms: AlarmIds | None = msgspec.field(default=None, name="alarms")
    """Set for target tracking only."""

    def __post_init__(self) -> None:
        """Check the configuration; a ValueError makes the record unreadable."""
        super().__post_init__()
        if self.is_target_tracking != (self.alarms is not None):
            raise ValueError(f"alarms is {self.alarms}; expected ids of alarms for target tracking only")
        _ = self.policy

    @property
    def is_target_tracking(self) -> bool:
        return self.policy_type == "TargetTrackingScaling"

    @property
    def configuration(self) -> Json:
        configuration = self.target_tracking if self.is_target_tracking else self.step_scaling
        if configuration is None:
            raise ValueError(f"{CONFIGURATIONS[self.policy_type]} is missing")
        return configuration

    @property
    def policy(self) -> TargetTracking | StepScaling:
        parse = target_tracking.policy_from_json if self.is_target_tracking else step_scaling.policy_from_json
        return parse(self.configuration)


SCALING_POLICY: Final = Kind("scaling-policy", PolicySpec, NoStatus)

PolicyRecord = Record[PolicySpec, NoStatus]


def policy_arn(aws_scope: AwsScope, record: PolicyRecord) -> str:
    """Return the ARN of a policy, which an alarm names as its action."""
    spec = record.spec
    return child_arn(aws_scope, record, spec.key, kind="scalingPolicy", title="policyName", name=spec.policy_name)


def triggers_of(
    aws_scope: AwsScope, policies: Sequence[PolicyRecord], alarms: Sequence[EvaluatedAlarm]
) -> list[Trigger]:
    """Return a trigger for each pair of a policy and an alarm with it as an action, whatever the alarm's state."""
    return [
        Trigger(
            policy_name=policy.spec.policy_name,
            alarm_name=alarm.record.name,
            policy=policy.spec.policy,
            # In ALARM while the alarm is in a state that has the policy as its action.
            state="ALARM" if arn in alarm.actions else "OK",
            values=alarm.values,
            threshold=alarm.rule.threshold,
            comparison=alarm.rule.comparison,
            gap_s=alarm.rule.watched_s if alarm.is_from_gaps else 0.0,
        )
        for policy in policies
        for arn in (policy_arn(aws_scope, policy),)
        for alarm in alarms
        if arn in alarm.record.spec.actions
    ]


_NAMESPACE = "AWS/SageMaker"
_PERIOD_S = 60
PREDEFINED = {
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
"""Predefined metric → the dimension it applies to, the metric's name, its statistic."""


def watched_by(key: TargetKey, config: Json) -> dict[str, Any]:
    """
    Return the members of an alarm that select the metric of a policy.

    Args:
        key: The policy's target.
        config: TargetTrackingScalingPolicyConfiguration.

    Raises `AwsError`: There is no metric, it is not for this dimension, or the specification contradicts itself.
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


def alarm_names(policy: PolicySpec) -> dict[Side, str]:
    """Return the names of a policy's own alarms: High, and Low if it may scale in; step policies have none."""
    if policy.alarms is None:
        return {}
    start = f"TargetTracking-{policy.resource_id}-Alarm"
    names: dict[Side, str] = {"High": f"{start}High-{policy.alarms.high}"}
    if not policy.configuration.get("DisableScaleIn"):
        names["Low"] = f"{start}Low-{policy.alarms.low}"
    return names


def alarm_specs(aws_scope: AwsScope, record: PolicyRecord) -> dict[str, AlarmSpec]:
    """Return the alarms that a policy needs, by name; step policies need none."""
    if not record.spec.is_target_tracking:
        return {}
    members = _members(record.spec.key, record.spec.configuration)
    arn = policy_arn(aws_scope, record)
    shared: Json = {
        "AlarmDescription": f"DO NOT EDIT OR DELETE. For TargetTrackingScaling policy {arn}.",
        "AlarmActions": [arn],
        "owner": arn,
    }
    return {
        name: msgspec.convert({"AlarmName": name, **shared, **members[side]}, AlarmSpec)
        for side, name in alarm_names(record.spec).items()
    }


def _members(key: TargetKey, config: Json) -> dict[Side, Json]:
    predefined = (config.get("PredefinedMetricSpecification") or {}).get("PredefinedMetricType")
    return target_tracking.alarm_specs(
        target_tracking.policy_from_json(config),
        watched_by(key, config),
        is_high_resolution=predefined in target_tracking.HIGH_RESOLUTION,
    )


def _predefined(key: TargetKey, predefined: Json) -> dict[str, Any]:
    kind = predefined["PredefinedMetricType"]
    dimension, metric, statistic = PREDEFINED.get(kind, ("", "", ""))
    if dimension != key.dimension:
        fitting = [name for name, (applies_to, _, _) in PREDEFINED.items() if applies_to == key.dimension]
        raise validation_error(
            f"The predefined metric {kind} is not for {key.dimension}. Use one of {', '.join(fitting)}."
        )
    if predefined.get("ResourceLabel"):
        raise validation_error("You can't specify a resource label unless the metric type is ALBRequestCountPerTarget.")
    if key.component:
        dimensions = [{"Name": "InferenceComponentName", "Value": key.component}]
    else:
        dimensions = [{"Name": "EndpointName", "Value": key.endpoint}, {"Name": "VariantName", "Value": key.variant}]
    return {"MetricName": metric, "Namespace": _NAMESPACE, "Dimensions": dimensions, "Statistic": statistic}


def _queries(queries: list[Json]) -> list[Json]:
    """Return a policy's queries in the form of an alarm's: with a period, one of them watched."""
    if sum(query.get("ReturnData", True) for query in queries) != 1:
        raise validation_error("Exactly one of Metrics must have ReturnData true (the default): it is what is tracked.")
    ids = [query["Id"] for query in queries]
    if len(set(ids)) < len(ids):
        raise validation_error("Two of Metrics have the same Id. Ids are unique.")
    return [_query(query) for query in queries]


def _query(query: Json) -> Json:
    if ("MetricStat" in query) == ("Expression" in query):
        raise validation_error(f"{query['Id']} of Metrics must have either MetricStat or Expression.")
    completed: Json = {"ReturnData": True, **query}
    if "MetricStat" in query:
        completed["MetricStat"] = {**query["MetricStat"], "Period": _PERIOD_S}
    return completed


def check_tracking(key: TargetKey, config: Json) -> None:
    """Refuse a configuration that breaks a rule of target tracking, or whose alarms CloudWatch would refuse."""
    for member in ("ScaleOutCooldown", "ScaleInCooldown"):
        if config.get(member, 0) < 0:
            raise validation_error(f"{member} is {config[member]}; expected 0 seconds or more.")
    try:
        target_tracking.policy_from_json(config)
    except ValueError as error:
        raise AwsError("ValidationException", str(error)) from error
    for spec in _members(key, config).values():
        try:
            parse_alarm(spec)
        except AwsError as error:
            raise validation_error(str(error)) from error
