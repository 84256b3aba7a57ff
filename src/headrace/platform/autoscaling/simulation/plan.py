"""
Parses scaling policies in the form of AWS's API and CLI into a scenario for a simulation. Pure.

A document is one of: a TargetTrackingScalingPolicyConfiguration (the file of `--target-tracking-scaling-policy-
configuration`), a PutScalingPolicy request, or an object with `Policies` (such requests), `Alarms` (PutMetricAlarm
requests, for step policies; `AlarmActions` name the policies), `ScheduledActions` (PutScheduledAction requests),
`MinCapacity`, `MaxCapacity` and `SuspendedState` (as in RegisterScalableTarget).
"""

from collections.abc import Mapping
from typing import Any

from headrace.platform.autoscaling.planning import schedule, step_scaling, target_tracking
from headrace.platform.autoscaling.planning.decision import SuspendedState
from headrace.platform.autoscaling.planning.policies import PREDEFINED
from headrace.platform.autoscaling.planning.schedule import Window
from headrace.platform.autoscaling.simulation.fleet import NAMESPACE, check, metric
from headrace.platform.autoscaling.simulation.simulator import Scenario, SimulatedAction, SimulatedAlarm
from headrace.platform.cloudwatch.alarms.rules import MINUTE_S, rule_from_json


def scenario_from_json(
    document: Mapping[str, Any], *, start_s: float, minimum: int | None = None, maximum: int | None = None
) -> Scenario:
    """
    Parse a document; `minimum` and `maximum` override its bounds, whose defaults are 1 and 10.

    Rates without a StartTime count from `start_s`.

    Raises `ValueError`: AWS would refuse it, or it uses a metric that is not simulated.
    """
    low = int(document.get("MinCapacity", 1) if minimum is None else minimum)
    high = int(document.get("MaxCapacity", max(low, 10)) if maximum is None else maximum)
    if not 0 <= low <= high:
        raise ValueError(f"MinCapacity is {low} and MaxCapacity {high}; expected 0 <= MinCapacity <= MaxCapacity.")
    policies = _policies(document)
    names = [_name_of(request) for request in policies]
    for alarm in document.get("Alarms") or ():
        if not any(_starts(alarm, name) for name in names):  # an alarm that starts nothing is a mistake
            raise ValueError(
                f"AlarmActions of the alarm {alarm.get('AlarmName')} are {alarm.get('AlarmActions')}; expected one of "
                f"Policies ({', '.join(names)}). Only actions on ALARM are simulated."
            )
    alarms: list[SimulatedAlarm] = []
    for request in policies:
        alarms += _alarms_of(request, document.get("Alarms") or ())
    suspended = document.get("SuspendedState") or {}
    return Scenario(
        min_capacity=low,
        max_capacity=high,
        initial=low,
        alarms=tuple(alarms),
        actions=tuple(_action(request, start_s) for request in document.get("ScheduledActions") or ()),
        suspensions=SuspendedState(
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
        raise ValueError("Expected a TargetValue with its metric, a PutScalingPolicy request, or Policies.")
    return list(document.get("Policies") or ())


def _name_of(request: Mapping[str, Any]) -> str:
    return str(request.get("PolicyName", "policy"))


def _starts(alarm: Mapping[str, Any], name: str) -> bool:
    """Return whether an alarm has a policy as its action, by name or ARN."""
    actions = [str(action) for action in alarm.get("AlarmActions") or ()]
    return any(action == name or action.endswith(f":policyName/{name}") for action in actions)


def _alarms_of(request: Mapping[str, Any], alarms: Any) -> list[SimulatedAlarm]:
    name = _name_of(request)
    if config := request.get("TargetTrackingScalingPolicyConfiguration"):
        return _tracking(name, config)
    config = request.get("StepScalingPolicyConfiguration")
    if not config:
        raise ValueError(
            f"Policy {name} is neither target tracking nor step scaling; predictive scaling is not supported."
        )
    policy = step_scaling.policy_from_json(config)
    own = [alarm for alarm in alarms if _starts(alarm, name)]
    if not own:
        raise ValueError(f"Step policy {name} needs one of Alarms, with its name in AlarmActions.")
    return [_simulated(spec.get("AlarmName", name), spec, name, policy) for spec in own]


def _tracking(name: str, config: Mapping[str, Any]) -> list[SimulatedAlarm]:
    policy = target_tracking.policy_from_json(config)
    is_fast = False
    if predefined := config.get("PredefinedMetricSpecification"):
        kind = str(predefined.get("PredefinedMetricType"))
        if kind not in PREDEFINED:
            raise ValueError(
                f"PredefinedMetricType {kind!r} cannot be simulated; expected one of {', '.join(PREDEFINED)}."
            )
        is_fast = kind in target_tracking.HIGH_RESOLUTION
        _, metric_name, statistic = PREDEFINED[kind]
        watched: dict[str, Any] = {"MetricName": metric_name, "Statistic": statistic}
    else:
        custom = config["CustomizedMetricSpecification"]
        watched = {key: custom[key] for key in ("MetricName", "Statistic", "Metrics") if key in custom}
    specs = target_tracking.alarm_specs(policy, watched, is_high_resolution=is_fast)
    return [_simulated(f"TargetTracking-{name}-Alarm{side}", spec, name, policy) for side, spec in specs.items()]


def _simulated(name: str, spec: Mapping[str, Any], policy_name: str, policy: Any) -> SimulatedAlarm:
    """Return an alarm on simulated metrics in place of the named ones, without a unit."""
    queries = [_query(query) for query in spec.get("Metrics") or ()]
    own = {"Metrics": queries} if queries else {"MetricName": metric(str(spec.get("MetricName"))).name}
    rest = {key: value for key, value in spec.items() if key not in ("Metrics", "MetricName", "Dimensions", "Unit")}
    rule = rule_from_json({**rest, **own, "Namespace": NAMESPACE})
    if queries and sum(query["ReturnData"] for query in queries) != 1:
        raise ValueError(f"Exactly one of Metrics of {name} must have ReturnData true (the default).")
    check(rule)
    return SimulatedAlarm(name=name, rule=rule, policy_name=policy_name, policy=policy)


def _query(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a query of an alarm or a policy for simulated metrics, with a period."""
    if not query.get("Id") or bool(query.get("MetricStat")) == bool(query.get("Expression")):
        raise ValueError(f"{query.get('Id')!r} of Metrics must have an Id and either MetricStat or Expression.")
    made = {"ReturnData": True, **query}
    if stat := query.get("MetricStat"):
        named = metric(str((stat.get("Metric") or {}).get("MetricName")))
        made["MetricStat"] = {
            "Metric": {"Namespace": NAMESPACE, "MetricName": named.name},
            "Period": stat.get("Period", MINUTE_S),
            "Stat": stat.get("Stat", "Average"),
        }
    return made


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
