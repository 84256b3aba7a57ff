"""What `headrace scale NAME --describe` prints: how much there is, what scales it, and what happened. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.cli.tables import age, table

_NOT_SCALED = {
    "AlreadyAtMaxCapacity": "already at the maximum, {MaxCapacity}",
    "AlreadyAtMinCapacity": "already at the minimum, {MinCapacity}",
    "AlreadyAtDesiredCapacity": "{CurrentCapacity} are right",
    "AutoScalingAnticipatedFlapping": "one less than {CurrentCapacity} would be added again",
    "TargetServicePutResourceAsUnscalable": "cannot be scaled now: it is being changed, or has failed",
}
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
    All of it, for people.

    Args:
        target: as DescribeScalableTargets has it; the others as their operations do.
        counts: how many serve, and how many are wanted.
        policies: of the target.
        alarms: name → state.
        activities: newest first.
        now: for the ages.
    """
    unit = "copies" if target["ResourceId"].startswith("inference-component/") else "workers"
    serving, wanted = counts
    bounds = f"{target['MinCapacity']} to {target['MaxCapacity']}"
    parts = [f"{target['ResourceId']}: {serving} of {wanted} {unit} serve, {bounds} are allowed"]
    suspended = [text for member, text in _SUSPENDED.items() if target.get("SuspendedState", {}).get(member)]
    if suspended:
        parts.append(f"suspended: {', '.join(suspended)}")
    if policies:
        rows = [(one["PolicyName"], policy_text(one), _alarm_states(one, alarms)) for one in policies]
        parts += ["", table([("POLICY", "DOES", "ALARMS"), *rows])]
    if activities:
        rows_done = [_activity_row(activity, now) for activity in activities]
        parts += ["", table([("AGE", "STATUS", "WHAT", "WHY"), *rows_done])]
    return "\n".join(parts)


def policy_text(policy: Mapping[str, Any]) -> str:
    """What a policy does, in a few words."""
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
    """`High OK, Low ALARM`; a user's own alarm by its name."""
    found = []
    for alarm in policy.get("Alarms", ()):
        name = alarm["AlarmName"]
        found.append(f"{_short(name)} {alarms.get(name, 'gone')}")
    return ", ".join(found) or "none: nothing starts it"


def _short(alarm: str) -> str:
    """`High` and `Low` for the alarms that a target-tracking policy makes."""
    is_made = alarm.startswith("TargetTracking-")
    return next((side for side in ("High", "Low") if is_made and f"-Alarm{side}-" in alarm), alarm)


def _cause(activity: Mapping[str, Any]) -> str:
    """In fewer words than AWS's, where an alarm was it."""
    text = str(activity["Cause"])
    found = _BY_ALARM.fullmatch(text)
    return f"{found['policy']}: alarm {_short(found['alarm'])} is in {found['state']}" if found else text


def _activity_row(activity: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    reasons = [
        _NOT_SCALED.get(reason["Code"], reason["Code"]).format_map({**_NUMBERS, **reason})
        for reason in activity.get("NotScaledReasons", ())
    ]
    what = ", ".join(reasons) or activity["Description"]
    if activity["StatusCode"] in ("Failed", "Unfulfilled") and not reasons:
        what = activity.get("StatusMessage", what)
    what = " ".join(filter(None, (what, activity.get("Details"))))
    status = "not scaled" if reasons else activity["StatusCode"]
    return age(activity["StartTime"], now), status, what, _cause(activity)


_NUMBERS = dict.fromkeys(("MinCapacity", "MaxCapacity", "CurrentCapacity"), "?")
