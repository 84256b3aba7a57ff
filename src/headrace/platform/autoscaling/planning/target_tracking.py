"""
Target tracking: capacity that keeps a metric per unit of capacity at a target. Pure.

A policy owns two CloudWatch alarms: High scales out, Low scales in.
Source: Application Auto Scaling user guide, "Target tracking scaling policies"; the alarms that AWS creates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.platform.autoscaling.planning.step_scaling import DEFAULT_COOLDOWN_S

Side = Literal["High", "Low"]
"""One of a policy's two alarms: High scales out, Low scales in."""

_MOST = 2.0**31
"""More than any MaxCapacity. A large value divided by a tiny target is infinite."""
LOW_SHARE = 0.9
"""Share of the target below which the metric must stay to scale in. The guide: "usually more than 10% lower"."""

HIGH_RESOLUTION = (
    "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution",
    "SageMakerVariantConcurrentRequestsPerModelHighResolution",
)
"""Predefined metrics that are measured every 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTracking:
    """A target-tracking policy, without its metric."""

    target_value: float
    scale_out_cooldown_s: float = DEFAULT_COOLDOWN_S
    scale_in_cooldown_s: float = DEFAULT_COOLDOWN_S
    is_scale_in_disabled: bool = False


def policy_from_json(config: Mapping[str, Any]) -> TargetTracking:
    """Parse a configuration, but for its metric. Raises `ValueError`: AWS would refuse it."""
    target = config.get("TargetValue")
    if target is None or not math.isfinite(target) or target <= 0:
        raise ValueError(f"TargetValue is {target!r}; expected a number above 0.")
    has_own = bool(config.get("CustomizedMetricSpecification"))
    if has_own == bool(config.get("PredefinedMetricSpecification")):
        raise ValueError("Expected either PredefinedMetricSpecification or CustomizedMetricSpecification.")
    out_s, in_s = config.get("ScaleOutCooldown"), config.get("ScaleInCooldown")
    return TargetTracking(
        target_value=float(target),
        scale_out_cooldown_s=float(DEFAULT_COOLDOWN_S if out_s is None else out_s),
        scale_in_cooldown_s=float(DEFAULT_COOLDOWN_S if in_s is None else in_s),
        is_scale_in_disabled=bool(config.get("DisableScaleIn")),
    )


def alarm_specs(
    policy: TargetTracking, watched: Mapping[str, Any], *, is_high_resolution: bool
) -> dict[Side, dict[str, Any]]:
    """
    Return the policy's alarms as PutMetricAlarm takes them, without names and actions.

    A policy that may not scale in has only High. `watched` selects the metric; `Metrics` have periods of their own. A
    metric measured every 10 s scales out after 1 minute and in after 15.
    """
    period_s, num_high, num_low = (10, 6, 90) if is_high_resolution else (60, 3, 15)
    shared = dict(watched) if watched.get("Metrics") else {**watched, "Period": period_s}
    high = {"ComparisonOperator": "GreaterThanThreshold", "EvaluationPeriods": num_high}
    low = {"ComparisonOperator": "LessThanThreshold", "EvaluationPeriods": num_low}
    specs: dict[Side, dict[str, Any]] = {"High": {**shared, **high, "Threshold": policy.target_value}}
    if not policy.is_scale_in_disabled:
        specs["Low"] = {**shared, **low, "Threshold": policy.target_value * LOW_SHARE}
    return specs


def capacity_out(policy: TargetTracking, values: Sequence[float], *, capacity: int) -> int:
    """Return the capacity at which the newest value, measured with `capacity`, would be at the target."""
    return _ceil(capacity * values[-1] / policy.target_value)


def capacity_in(policy: TargetTracking, values: Sequence[float], *, capacity: int) -> int:
    """
    Return the capacity at which the largest of the values would be at the target; never more than `capacity`.

    The largest, not the newest: scaling in is meant to be slower. Rounded up, so that the rest is never above the
    target, which would scale out again.
    """
    return min(capacity, _ceil(capacity * max(values) / policy.target_value))


def _ceil(value: float) -> int:
    """Round up, tolerating floating-point error: 3 x 0.7 / 0.7 is 3. No target may have `_MOST` or more."""
    value = min(max(value, 0.0), _MOST)
    nearest = round(value)
    return nearest if math.isclose(value, nearest, rel_tol=1e-9) else math.ceil(value)
