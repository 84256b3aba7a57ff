"""
Policies as AWS's API and CLI have them, read for a simulation.

A document is one of: a TargetTrackingScalingPolicyConfiguration (the file of `--target-tracking-scaling-policy-
configuration`), a PutScalingPolicy request, or an object with `Policies` (such requests), `Alarms` (PutMetricAlarm
requests, for step policies; `AlarmActions` name the policies), `ScheduledActions` (PutScheduledAction requests),
`MinCapacity`, `MaxCapacity` and `SuspendedState` (as in RegisterScalableTarget).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.scaling import schedule, step, target_tracking
from headrace.scaling.alarms import rule_from_json
from headrace.scaling.decide import Suspended
from headrace.scaling.schedule import Window
from headrace.scaling.simulation import AGGREGATES, PER_MINUTE, Plan, Signal, SimulatedAction, SimulatedAlarm

PREDEFINED: Mapping[str, Signal] = {
    "SageMakerVariantInvocationsPerInstance": "invocations_per_copy",
    "SageMakerInferenceComponentInvocationsPerCopy": "invocations_per_copy",
    "SageMakerVariantConcurrentRequestsPerModelHighResolution": "concurrency_per_copy",
    "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution": "concurrency_per_copy",
}

METRICS: Mapping[str, Signal] = {
    "Invocations": "invocations",
    "InvocationsPerInstance": "invocations_per_copy",
    "InvocationsPerCopy": "invocations_per_copy",
    "ConcurrentRequestsPerModel": "concurrency_per_copy",
    "ConcurrentRequestsPerCopy": "concurrency_per_copy",
    "QueueDepth": "queue",
    "ApproximateBacklogSize": "queue",
    "HasBacklogWithoutCapacity": "backlog_at_zero",
    "NoCapacityInvocationFailures": "no_capacity",
}
"""The metrics that a simulation has, whatever their namespace and dimensions."""


def plan_from_json(
    document: Mapping[str, Any], *, start_s: float, minimum: int | None = None, maximum: int | None = None
) -> Plan:
    """
    Read a document.

    Args:
        document: Parsed JSON.
        start_s: When the simulation begins; rates without a StartTime count from there.
        minimum: In place of the document's MinCapacity; 1 where that is missing, too.
        maximum: In place of its MaxCapacity; 10 where that is missing, too.

    Raises:
        ValueError: AWS would refuse it, or a simulation has no such metric; the text says which.
    """
    low = int(document.get("MinCapacity", 1) if minimum is None else minimum)
    high = int(document.get("MaxCapacity", max(low, 10)) if maximum is None else maximum)
    if not 0 <= low <= high:
        raise ValueError(f"MinCapacity is {low} and MaxCapacity {high}; wanted: 0 <= MinCapacity <= MaxCapacity.")
    alarms: list[SimulatedAlarm] = []
    for request in _policies(document):
        alarms += _alarms_of(request, document.get("Alarms") or ())
    suspended = document.get("SuspendedState") or {}
    return Plan(
        min_capacity=low,
        max_capacity=high,
        initial=low,
        alarms=tuple(alarms),
        actions=tuple(_action(request, start_s) for request in document.get("ScheduledActions") or ()),
        suspended=Suspended(
            is_in=bool(suspended.get("DynamicScalingInSuspended")),
            is_out=bool(suspended.get("DynamicScalingOutSuspended")),
            is_scheduled=bool(suspended.get("ScheduledScalingSuspended")),
        ),
    )


def _policies(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "TargetValue" in document:
        return [{"PolicyName": "target", "TargetTrackingScalingPolicyConfiguration": document}]
    if "TargetTrackingScalingPolicyConfiguration" in document or "StepScalingPolicyConfiguration" in document:
        return [document]
    if not document.get("Policies") and not document.get("ScheduledActions"):
        raise ValueError("Wanted: a TargetValue with its metric, a PutScalingPolicy request, or Policies.")
    return list(document.get("Policies") or ())


def _alarms_of(request: Mapping[str, Any], alarms: Any) -> list[SimulatedAlarm]:
    name = str(request.get("PolicyName", "policy"))
    if config := request.get("TargetTrackingScalingPolicyConfiguration"):
        return _tracking(name, config)
    config = request.get("StepScalingPolicyConfiguration")
    if not config:
        raise ValueError(
            f"Policy {name} is neither target tracking nor step scaling; predictive scaling is not supported."
        )
    policy = step.policy_from_json(config)
    own = [alarm for alarm in alarms if any(name in action for action in alarm.get("AlarmActions") or ())]
    if not own:
        raise ValueError(f"Step policy {name} needs one of Alarms, with its name in AlarmActions.")
    return [_simulated(spec.get("AlarmName", name), spec, _signal(spec), name, policy) for spec in own]


def _tracking(name: str, config: Mapping[str, Any]) -> list[SimulatedAlarm]:
    policy = target_tracking.policy_from_json(config)
    if predefined := config.get("PredefinedMetricSpecification"):
        kind = str(predefined.get("PredefinedMetricType"))
        if kind not in PREDEFINED:
            raise ValueError(f"PredefinedMetricType {kind!r} cannot be simulated; wanted: {', '.join(PREDEFINED)}.")
        signal = PREDEFINED[kind]
        is_fast = kind in target_tracking.HIGH_RESOLUTION
        watched = {"MetricName": kind, "Namespace": "AWS/SageMaker", "Statistic": "Average" if is_fast else "Sum"}
    else:
        custom = config["CustomizedMetricSpecification"]
        signal, is_fast = _signal(custom), False
        watched = {key: custom[key] for key in ("MetricName", "Namespace", "Dimensions", "Statistic") if key in custom}
    specs = target_tracking.alarm_specs(policy, watched, is_high_resolution=is_fast)
    return [
        _simulated(f"TargetTracking-{name}-Alarm{side}", spec, signal, name, policy) for side, spec in specs.items()
    ]


def _signal(spec: Mapping[str, Any]) -> Signal:
    metric = str(spec.get("MetricName"))
    if metric not in METRICS:
        raise ValueError(f"Metric {metric!r} cannot be simulated; wanted: {', '.join(METRICS)}.")
    return METRICS[metric]


def _simulated(name: str, spec: Mapping[str, Any], signal: Signal, policy_name: str, policy: Any) -> SimulatedAlarm:
    rule = rule_from_json({"Namespace": "AWS/SageMaker", **spec})
    if rule.statistic not in AGGREGATES:
        raise ValueError(f"Statistic {rule.statistic} cannot be simulated; wanted: {', '.join(AGGREGATES)}.")
    shortest_s = 60 if signal in PER_MINUTE else 10
    if rule.period_s < shortest_s:
        rule = replace(rule, period_s=shortest_s)
    return SimulatedAlarm(name=name, rule=rule, signal=signal, policy_name=policy_name, policy=policy)


def _action(request: Mapping[str, Any], created_s: float) -> SimulatedAction:
    action = request.get("ScalableTargetAction") or {}
    if "MinCapacity" not in action and "MaxCapacity" not in action:
        raise ValueError("A scheduled action needs MinCapacity or MaxCapacity in its ScalableTargetAction.")
    return SimulatedAction(
        name=str(request.get("ScheduledActionName", "action")),
        schedule=schedule.parse(str(request.get("Schedule", "")), request.get("Timezone")),
        window=Window(
            created_s=created_s, start_s=_time_s(request.get("StartTime")), end_s=_time_s(request.get("EndTime"))
        ),
        min_capacity=action.get("MinCapacity"),
        max_capacity=action.get("MaxCapacity"),
    )


def _time_s(value: Any) -> float | None:
    if value is None or isinstance(value, int | float):
        return value
    return schedule.utc_s(str(value))
