"""The report of `headrace scale NAME --describe`: capacity, policies and activities. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.tools.cli.tables import age, table

_NOT_SCALED = {
    "AlreadyAtMaxCapacity": "already at the maximum, {MaxCapacity}",
    "AlreadyAtMinCapacity": "already at the minimum, {MinCapacity}",
    "AlreadyAtDesiredCapacity": "already at the desired capacity, {CurrentCapacity}",
    "AutoScalingAnticipatedFlapping": "removing one of {CurrentCapacity} would scale out again",
    "TargetServicePutResourceAsUnscalable": "cannot be scaled now: it is being updated, or has failed",
}
_NO_ALARM = "no alarm: nothing triggers it"
_UNKNOWN = dict.fromkeys(("MinCapacity", "MaxCapacity", "CurrentCapacity"), "?")
_BY_ALARM = re.compile(r"monitor alarm (?P<alarm>.+) in state (?P<state>\w+) triggered policy (?P<policy>.+)")
_ADJUSTMENTS = {"ChangeInCapacity": "{:+d}", "PercentChangeInCapacity": "{:+d} %", "ExactCapacity": "to {:d}"}
_SUSPENDED = {
    "DynamicScalingOutSuspended": "scaling out",
    "DynamicScalingInSuspended": "scaling in",
    "ScheduledScalingSuspended": "schedules",
}


def report(
    target: Mapping[str, Any],
    *,
    counts: tuple[int, int],
    policies: Sequence[Mapping[str, Any]],
    alarms: Mapping[str, str],
    activities: Sequence[Mapping[str, Any]],
    now: datetime,
) -> str:
    """
    Format the whole report for people from the responses of Application Auto Scaling.

    `counts` are the current and the desired capacity, `alarms` the states by name; `activities` are newest first.
    """
    unit = "copies" if target["ResourceId"].startswith("inference-component/") else "workers"
    current, desired = counts
    bounds = f"{target['MinCapacity']} to {target['MaxCapacity']}"
    parts = [f"{target['ResourceId']}: {current} of {desired} {unit} in service, bounds {bounds}"]
    suspended = [text for member, text in _SUSPENDED.items() if target.get("SuspendedState", {}).get(member)]
    if suspended:
        parts.append(f"suspended: {', '.join(suspended)}")
    if policies:
        rows = [(policy["PolicyName"], policy_text(policy), _alarm_states(policy, alarms)) for policy in policies]
        parts += ["", table([("POLICY", "DOES", "ALARMS"), *rows])]
    if activities:
        rows_done = [_activity_row(activity, now) for activity in activities]
        parts += ["", table([("AGE", "STATUS", "WHAT", "WHY"), *rows_done])]
    return "\n".join(parts)


def policy_text(policy: Mapping[str, Any]) -> str:
    tracking = policy.get("TargetTrackingScalingPolicyConfiguration")
    if tracking:
        only = ", never in" if tracking.get("DisableScaleIn") else ""
        return f"keeps {_metric_of(tracking)} at {tracking['TargetValue']:g}{only}"
    steps = policy.get("StepScalingPolicyConfiguration") or {}
    adjustment = _ADJUSTMENTS.get(steps.get("AdjustmentType", ""), "{:d}")
    return ", ".join(adjustment.format(step["ScalingAdjustment"]) for step in steps.get("StepAdjustments", ()))


def _metric_of(tracking: Mapping[str, Any]) -> str:
    if predefined := tracking.get("PredefinedMetricSpecification"):
        return str(predefined["PredefinedMetricType"])
    custom = tracking.get("CustomizedMetricSpecification") or {}
    shown = [query for query in custom.get("Metrics", ()) if query.get("ReturnData", True)]
    return str(shown[0].get("Expression") or shown[0]["Id"] if shown else custom.get("MetricName", "a metric"))


def _alarm_states(policy: Mapping[str, Any], alarms: Mapping[str, str]) -> str:
    """Return the alarm states such as `High OK, Low ALARM`; alarms of the user appear by name."""
    names = [alarm["AlarmName"] for alarm in policy.get("Alarms", ())]
    return ", ".join(f"{_short(name)} {alarms.get(name, 'deleted')}" for name in names) or _NO_ALARM


def _short(alarm: str) -> str:
    """Return `High` or `Low` for the alarms of a target-tracking policy, else the name."""
    is_made = alarm.startswith("TargetTracking-")
    return next((side for side in ("High", "Low") if is_made and f"-Alarm{side}-" in alarm), alarm)


def _cause(activity: Mapping[str, Any]) -> str:
    text = str(activity["Cause"])
    match = _BY_ALARM.fullmatch(text)
    return f"{match['policy']}: alarm {_short(match['alarm'])} is in {match['state']}" if match else text


def _activity_row(activity: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    reasons = [
        _NOT_SCALED.get(reason["Code"], reason["Code"]).format_map({**_UNKNOWN, **reason})
        for reason in activity.get("NotScaledReasons", ())
    ]
    description = ", ".join(reasons) or activity["Description"]
    if activity["StatusCode"] in ("Failed", "Unfulfilled") and not reasons:
        description = activity.get("StatusMessage", description)
    description = " ".join(filter(None, (description, activity.get("Details"))))
    status = "not scaled" if reasons else activity["StatusCode"]
    return age(activity["StartTime"], now), status, description, _cause(activity)
