"""The two kinds of policies: how their configuration is read, and the capacity that a metric leads to."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.autoscaling.planning import step_scaling, target_tracking
from headrace.platform.autoscaling.planning.step_scaling import StepAdjustment, StepScaling
from headrace.platform.autoscaling.planning.target_tracking import TargetTracking


def step(lower: float | None, upper: float | None, adjustment: int = 1) -> dict[str, Any]:
    bounds = {"MetricIntervalLowerBound": lower, "MetricIntervalUpperBound": upper}
    return {"ScalingAdjustment": adjustment, **{name: bound for name, bound in bounds.items() if bound is not None}}


def step_config(*steps: dict[str, Any], kind: str = "ChangeInCapacity", **members: Any) -> dict[str, Any]:
    return {"AdjustmentType": kind, "StepAdjustments": list(steps or [step(0, None)]), **members}


def test_members_that_a_step_policy_leaves_out_have_the_defaults_of_aws() -> None:
    found = step_scaling.policy_from_json(step_config(step(5, None, 2), step(0, 5)))
    steps = (StepAdjustment(lower=0, upper=5, adjustment=1), StepAdjustment(lower=5, upper=math.inf, adjustment=2))
    assert found == StepScaling(adjustment_type="ChangeInCapacity", steps=steps, min_magnitude=0, cooldown_s=300)
    assert found.aggregation == "Average"


def test_the_members_of_a_step_policy_are_read() -> None:
    config = step_config(
        step(None, 0, -10),
        kind="PercentChangeInCapacity",
        MinAdjustmentMagnitude=2,
        Cooldown=0,
        MetricAggregationType="Maximum",
    )
    found = step_scaling.policy_from_json(config)
    assert found.steps == (StepAdjustment(lower=-math.inf, upper=0, adjustment=-10),)
    assert (found.min_magnitude, found.cooldown_s, found.aggregation) == (2, 0, "Maximum")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (step_config(kind="Percent"), "AdjustmentType is 'Percent'"),
        (step_config(step(0, None, -1), kind="ExactCapacity"), "must not be negative"),
        (step_config(MinAdjustmentMagnitude=1), "only allowed with AdjustmentType PercentChangeInCapacity"),
        (step_config({"MetricIntervalLowerBound": 0}), "needs a ScalingAdjustment"),
        (step_config(step(0, 5), step(4, None)), "overlap"),
        (step_config(step(-5, 0)), "must leave MetricIntervalLowerBound open"),
        (step_config(step(-0.5, 0)), "must leave MetricIntervalLowerBound open"),
        (step_config(step(0, 0.5)), "must leave MetricIntervalUpperBound open"),
        (step_config(step(None, 0), step(0, 0.5)), "must leave MetricIntervalUpperBound open"),
    ],
)
def test_a_step_policy_that_aws_refuses_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step_scaling.policy_from_json(config)


@pytest.mark.parametrize(
    "config",
    [
        step_config(step(0, None, 0), kind="ExactCapacity"),
        step_config(step(None, 0), step(0, None)),
        step_config(step(None, -5), step(-5, 0)),
        step_config(step(None, -5)),
        step_config(step(5, None)),
        step_config(step(None, 0), step(0, None), kind="PercentChangeInCapacity", MinAdjustmentMagnitude=1),
    ],
)
def test_a_step_policy_that_aws_accepts_is_accepted(config: dict[str, Any]) -> None:
    assert len(step_scaling.policy_from_json(config).steps) == len(config["StepAdjustments"])


@pytest.mark.parametrize(
    ("value", "is_alarm_below", "adjustment"),
    [
        # Above the threshold the lower bound belongs to a step, below it the upper one.
        (50, False, 1),
        (59.9, False, 1),
        (60, False, 2),
        (1000, False, 2),
        (50, True, -1),
        (49.9, False, -1),
        (40, True, -2),
        (40.1, True, -1),
        (-1000, True, -2),
        (50.1, True, 1),
    ],
)
def test_a_value_belongs_to_one_step(value: float, adjustment: int, *, is_alarm_below: bool) -> None:
    config = step_config(step(None, -10, -2), step(-10, 0, -1), step(0, 10, 1), step(10, None, 2))
    policy = step_scaling.policy_from_json(config)
    found = step_scaling.step_for(policy, value=value, threshold=50, is_alarm_below=is_alarm_below)
    assert found is not None
    assert found.adjustment == adjustment


def test_a_value_outside_all_steps_changes_nothing() -> None:
    policy = step_scaling.policy_from_json(step_config(step(5, None)))
    assert step_scaling.step_for(policy, value=54, threshold=50) is None
    assert step_scaling.step_for(policy, value=45, threshold=50) is None


@pytest.mark.parametrize(
    ("kind", "adjustment", "min_magnitude", "capacity", "expected"),
    [
        ("ExactCapacity", 7, 0, 3, 7),
        ("ChangeInCapacity", 7, 0, 3, 10),
        ("ChangeInCapacity", -2, 0, 3, 1),
        ("ChangeInCapacity", -7, 0, 3, 0),
        ("PercentChangeInCapacity", 50, 0, 10, 15),
        ("PercentChangeInCapacity", -50, 0, 10, 5),
        ("PercentChangeInCapacity", -200, 0, 10, 0),
        ("PercentChangeInCapacity", 100, 0, 1, 2),
        ("PercentChangeInCapacity", 50, 0, 0, 0),
        # The minimum magnitude has the sign of the adjustment, and leaves larger changes alone.
        ("PercentChangeInCapacity", 50, 2, 10, 15),
        ("PercentChangeInCapacity", 20, 2, 10, 12),
        ("PercentChangeInCapacity", 10, 3, 10, 13),
        ("PercentChangeInCapacity", -10, 3, 10, 7),
        ("PercentChangeInCapacity", 50, 2, 0, 2),
        ("PercentChangeInCapacity", 0, 2, 10, 10),
    ],
)
def test_a_step_leads_to_a_capacity(
    kind: Any, adjustment: int, min_magnitude: int, capacity: int, expected: int
) -> None:
    found = StepAdjustment(adjustment=adjustment)
    policy = StepScaling(adjustment_type=kind, steps=(found,), min_magnitude=min_magnitude)
    assert step_scaling.adjusted(policy, found, capacity=capacity) == expected


def test_values_are_aggregated_as_the_policy_says() -> None:
    for aggregation, expected in (("Average", 2.0), ("Minimum", 1.0), ("Maximum", 3.0)):
        policy = step_scaling.policy_from_json(step_config(MetricAggregationType=aggregation))
        assert step_scaling.aggregate(policy, (1.0, 3.0, 2.0)) == expected


METRIC = {"PredefinedMetricSpecification": {"PredefinedMetricType": "m"}}


def test_a_target_tracking_policy_is_read_with_the_defaults_of_aws() -> None:
    assert target_tracking.policy_from_json({"TargetValue": 5, **METRIC}) == TargetTracking(
        target_value=5, scale_out_cooldown_s=300, scale_in_cooldown_s=300, is_scale_in_disabled=False
    )
    assert TargetTracking(target_value=5) == target_tracking.policy_from_json({"TargetValue": 5, **METRIC})
    members = {"ScaleOutCooldown": 0, "ScaleInCooldown": 7, "DisableScaleIn": True}
    assert target_tracking.policy_from_json({"TargetValue": 0.5, **METRIC, **members}) == TargetTracking(
        target_value=0.5, scale_out_cooldown_s=0, scale_in_cooldown_s=7, is_scale_in_disabled=True
    )
    with pytest.raises(ValueError, match="TargetValue is 0"):
        target_tracking.policy_from_json({"TargetValue": 0, **METRIC})
    both = {**METRIC, "CustomizedMetricSpecification": {"MetricName": "m"}}
    with pytest.raises(ValueError, match="Expected either"):
        target_tracking.policy_from_json({"TargetValue": 5, **both})


@pytest.mark.parametrize(
    ("is_high_resolution", "period_s", "num_high", "num_low"), [(True, 10, 6, 90), (False, 60, 3, 15)]
)
def test_the_alarms_of_target_tracking_are_those_of_aws(
    period_s: int, num_high: int, num_low: int, *, is_high_resolution: bool
) -> None:
    """Out after one minute or three, in after fifteen, below nine tenths of the target."""
    watched = {"MetricName": "m", "Namespace": "n"}
    policy = TargetTracking(target_value=50)
    found = target_tracking.alarm_specs(policy, watched, is_high_resolution=is_high_resolution)
    assert found == {
        "High": {
            **watched,
            "Period": period_s,
            "EvaluationPeriods": num_high,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": 50,
        },
        "Low": {
            **watched,
            "Period": period_s,
            "EvaluationPeriods": num_low,
            "ComparisonOperator": "LessThanThreshold",
            "Threshold": 45,
        },
    }
    disabled = TargetTracking(target_value=50, is_scale_in_disabled=True)
    assert list(target_tracking.alarm_specs(disabled, watched, is_high_resolution=is_high_resolution)) == ["High"]
    own_periods = target_tracking.alarm_specs(policy, {"Metrics": [{}]}, is_high_resolution=is_high_resolution)
    assert "Period" not in own_periods["High"]


@given(st.integers(1, 50), st.floats(0.01, 1000), st.floats(0, 100, allow_subnormal=False))
def test_the_capacity_of_target_tracking_is_the_least_that_keeps_the_metric_at_its_target(
    capacity: int, target: float, load: float
) -> None:
    policy, value = TargetTracking(target_value=target), target * load
    found = target_tracking.capacity_out(policy, (0.0, value), capacity=capacity)
    assert capacity * load <= found * (1 + 1e-8)
    assert found - 1 < capacity * load * (1 + 1e-8)
    assert target_tracking.capacity_in(policy, (value, 0.0), capacity=capacity) == min(capacity, found)


def test_a_capacity_is_never_negative_and_never_infinite() -> None:
    assert target_tracking.capacity_in(TargetTracking(target_value=5), (0.0,), capacity=4) == 0
    assert target_tracking.capacity_in(TargetTracking(target_value=5), (-1.0,), capacity=4) == 0
    assert target_tracking.capacity_out(TargetTracking(target_value=1e-300), (1e300,), capacity=4) > 10**9
