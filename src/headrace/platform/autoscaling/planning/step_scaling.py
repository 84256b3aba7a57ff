"""
Step scaling: the distance of the metric from the alarm's threshold determines how much to add or remove. Pure.

What SageMaker's documents call "simple" scaling is a step policy with one step.
Source: Application Auto Scaling user guide, "Step scaling policies"; API reference, StepScalingPolicyConfiguration.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal, cast, get_args

AdjustmentType = Literal["ChangeInCapacity", "PercentChangeInCapacity", "ExactCapacity"]
Aggregation = Literal["Average", "Minimum", "Maximum"]

DEFAULT_COOLDOWN_S = 300
"""Cooldown of a policy of either type that names none. Source: API reference, Cooldown and ScaleOutCooldown."""
AGGREGATIONS: Mapping[Aggregation, Callable[[Sequence[float]], float]] = {
    "Average": fmean,
    "Minimum": min,
    "Maximum": max,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAdjustment:
    """The adjustment while (value - threshold) is between the bounds."""

    lower: float = -math.inf
    upper: float = math.inf
    adjustment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScaling:
    """A step scaling policy; its alarm is the user's own."""

    adjustment_type: AdjustmentType
    steps: tuple[StepAdjustment, ...]
    """Ordered by lower bound, without gaps and overlaps."""
    min_magnitude: int = 0
    """Minimum to add or remove, for PercentChangeInCapacity."""
    cooldown_s: float = DEFAULT_COOLDOWN_S
    aggregation: Aggregation = "Average"


def policy_from_json(config: Mapping[str, Any]) -> StepScaling:
    """Parse a StepScalingPolicyConfiguration. Raises `ValueError`: AWS would refuse it."""
    kind = config.get("AdjustmentType")
    if kind not in get_args(AdjustmentType):
        raise ValueError(f"AdjustmentType is {kind!r}; expected one of {', '.join(get_args(AdjustmentType))}.")
    steps = sorted(map(_step, config.get("StepAdjustments") or ()), key=lambda step: step.lower)
    _check_steps(steps)
    if kind == "ExactCapacity" and any(step.adjustment < 0 for step in steps):
        raise ValueError("ScalingAdjustment must not be negative with AdjustmentType ExactCapacity.")
    minimum = config.get("MinAdjustmentMagnitude")
    if minimum is not None and kind != "PercentChangeInCapacity":
        raise ValueError("MinAdjustmentMagnitude is only allowed with AdjustmentType PercentChangeInCapacity.")
    cooldown = config.get("Cooldown")
    return StepScaling(
        adjustment_type=cast("AdjustmentType", kind),
        steps=tuple(steps),
        min_magnitude=int(minimum or 0),
        cooldown_s=float(DEFAULT_COOLDOWN_S if cooldown is None else cooldown),
        aggregation=config.get("MetricAggregationType") or "Average",
    )


def aggregate(policy: StepScaling, values: Sequence[float]) -> float:
    """Aggregate the values that the alarm evaluated; there must be at least one."""
    return AGGREGATIONS[policy.aggregation](values)


def step_for(
    policy: StepScaling, *, value: float, threshold: float, is_alarm_below: bool = False
) -> StepAdjustment | None:
    """
    Return the step that contains the value, or None for no change.

    Above the threshold the lower bound is inclusive and the upper exclusive, below it the other way round. A value that
    equals the threshold is below it if the alarm fires on smaller values.
    """
    distance = value - threshold
    is_below = distance < 0 or (distance == 0 and is_alarm_below)
    for step in policy.steps:
        if (step.lower < distance <= step.upper) if is_below else (step.lower <= distance < step.upper):
            return step
    return None


def adjusted(policy: StepScaling, step: StepAdjustment, *, capacity: int) -> int:
    """Return the capacity that a step leads to, at least 0 but not limited to the target's bounds."""
    if policy.adjustment_type == "ExactCapacity":
        return step.adjustment
    if policy.adjustment_type == "ChangeInCapacity":
        return max(0, capacity + step.adjustment)
    exact = capacity * step.adjustment / 100
    # Round towards zero but never to it: 12.7 to 12, 0.67 to 1, -0.58 to -1, -6.67 to -6.
    change = int(math.copysign(1, exact)) if 0 < abs(exact) < 1 else math.trunc(exact)
    if step.adjustment and abs(change) < policy.min_magnitude:
        change = int(math.copysign(policy.min_magnitude, step.adjustment))
    return max(0, capacity + change)


def _step(config: Mapping[str, Any]) -> StepAdjustment:
    lower, upper = config.get("MetricIntervalLowerBound"), config.get("MetricIntervalUpperBound")
    if config.get("ScalingAdjustment") is None:
        raise ValueError("Each of StepAdjustments needs a ScalingAdjustment.")
    if lower is None and upper is None:
        raise ValueError("A step adjustment must not leave both MetricIntervalLowerBound and UpperBound open.")
    step = StepAdjustment(
        lower=-math.inf if lower is None else float(lower),
        upper=math.inf if upper is None else float(upper),
        adjustment=int(config["ScalingAdjustment"]),
    )
    if not step.lower < step.upper:
        raise ValueError(f"MetricIntervalUpperBound ({upper}) must be greater than MetricIntervalLowerBound ({lower}).")
    return step


def _check_steps(steps: Sequence[StepAdjustment]) -> None:
    if not steps:
        raise ValueError("StepAdjustments is empty; expected at least one.")
    for step, following in pairwise(steps):
        if step.upper != following.lower:
            raise ValueError(
                f"StepAdjustments must not overlap or leave a gap: one ends at {step.upper}, the next begins at "
                f"{following.lower}."
            )
    if steps[0].lower < 0 and steps[0].lower != -math.inf:
        raise ValueError("With a negative lower bound, one step adjustment must leave MetricIntervalLowerBound open.")
    if steps[-1].upper > 0 and steps[-1].upper != math.inf:
        raise ValueError("With a positive upper bound, one step adjustment must leave MetricIntervalUpperBound open.")
