import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.autoscaling.planning import step_scaling as step
from headrace.platform.autoscaling.planning import target_tracking
from headrace.platform.autoscaling.planning.decision import (
    Scaling,
    SuspendedState,
    TargetState,
    Trigger,
    capacity_within_bounds,
    decide,
)
from headrace.platform.cloudwatch.alarms.rules import Comparison

OUT_STEPS = {
    "AdjustmentType": "PercentChangeInCapacity",
    "StepAdjustments": [
        {"MetricIntervalLowerBound": 0, "MetricIntervalUpperBound": 10, "ScalingAdjustment": 0},
        {"MetricIntervalLowerBound": 10, "MetricIntervalUpperBound": 20, "ScalingAdjustment": 10},
        {"MetricIntervalLowerBound": 20, "ScalingAdjustment": 30},
    ],
}
IN_STEPS = {
    "AdjustmentType": "PercentChangeInCapacity",
    "StepAdjustments": [
        {"MetricIntervalLowerBound": -10, "MetricIntervalUpperBound": 0, "ScalingAdjustment": 0},
        {"MetricIntervalLowerBound": -20, "MetricIntervalUpperBound": -10, "ScalingAdjustment": -10},
        {"MetricIntervalUpperBound": -20, "ScalingAdjustment": -30},
    ],
}


def state(desired: int, **changes) -> TargetState:
    values = {"desired": desired, "in_service": desired, "min_capacity": 0, "max_capacity": 100}
    return TargetState(**{**values, **changes})


def tracking(target: float = 50, **changes) -> target_tracking.TargetTracking:
    return target_tracking.TargetTracking(target_value=target, **changes)


def trigger(policy, value: float, *, is_below=False, is_alarm=True, threshold=50.0, name="p") -> Trigger:
    return Trigger(
        policy_name=name,
        alarm_name=f"{name}-{'low' if is_below else 'high'}",
        policy=policy,
        state="ALARM" if is_alarm else "OK",
        values=(value,),
        threshold=threshold,
        comparison="LessThanOrEqualToThreshold" if is_below else "GreaterThanOrEqualToThreshold",
    )


def cooling(from_capacity: int, *, direction="out", cooldown_s=100.0) -> Scaling:
    return Scaling(direction=direction, from_capacity=from_capacity, cooldown_s=cooldown_s, ended_s=100.0)


BY_ONE = step.StepScaling(adjustment_type="ChangeInCapacity", steps=(step.StepAdjustment(lower=0, adjustment=1),))


def test_the_step_example_of_the_user_guide():
    """10 copies and a threshold of 50: 60 % makes 11, 70 % 14, 40 % 13, 30 % 10."""
    out, shrink = step.policy_from_json(OUT_STEPS), step.policy_from_json(IN_STEPS)
    capacity = 10
    for value, expected in [(55.0, 10), (60.0, 11), (70.0, 14)]:
        capacity = decide(state(capacity), [trigger(out, value)], now_s=0).capacity or capacity
        assert capacity == expected
    for value, expected in [(45.0, 14), (40.0, 13), (30.0, 10)]:
        capacity = decide(state(capacity), [trigger(shrink, value, is_below=True)], now_s=0).capacity or capacity
        assert capacity == expected


@pytest.mark.parametrize(("capacity", "percent", "change"), [(127, 10, 12), (67, 1, 1), (58, -1, -1), (667, -1, -6)])
def test_percentages_are_rounded_as_the_guide_says(capacity, percent, change):
    adjustment = step.StepAdjustment(adjustment=percent)
    policy = step.StepScaling(adjustment_type="PercentChangeInCapacity", steps=(adjustment,))
    assert step.adjusted(policy, adjustment, capacity=capacity) == capacity + change


def test_the_minimum_magnitude_of_the_guide_adds_two():
    adjustment = step.StepAdjustment(lower=0, adjustment=25)
    policy = step.StepScaling(adjustment_type="PercentChangeInCapacity", steps=(adjustment,), min_magnitude=2)
    assert step.adjusted(policy, adjustment, capacity=4) == 6


def test_a_larger_step_within_the_cooldown_adds_only_the_difference():
    """The guide: 2 were added; a step of 3 in the cooldown adds 1; a step of 2 nothing."""
    last = Scaling(direction="out", from_capacity=4, cooldown_s=300, ended_s=100)
    for adjustment, expected in [(3, 7), (2, None)]:
        policy = step.StepScaling(
            adjustment_type="ChangeInCapacity", steps=(step.StepAdjustment(lower=0, adjustment=adjustment),)
        )
        decision = decide(state(6, last=last), [trigger(policy, 60.0)], now_s=200)
        assert decision.capacity == expected
    assert decide(state(6, last=last), [trigger(policy, 60.0)], now_s=400).capacity == 8


def test_target_tracking_adds_in_proportion_and_keeps_the_rest_below_the_target():
    assert decide(state(4), [trigger(tracking(), 80.0)], now_s=0).capacity == 7
    assert decide(state(10), [trigger(tracking(), 21.0, is_below=True)], now_s=0).capacity == 5


def test_a_value_too_large_for_the_target_leads_to_the_maximum():
    assert decide(state(4), [trigger(tracking(1e-300), 1e100)], now_s=0).capacity == 100
    assert decide(state(4, min_capacity=2), [trigger(tracking(1e-300), -1e100, is_below=True)], now_s=0).capacity == 2


def test_starting_copies_are_not_added_twice():
    """Four are asked for, two serve: what the two measure says nothing new."""
    decision = decide(state(4, in_service=2), [trigger(tracking(), 100.0)], now_s=0)
    assert decision.capacity is None
    assert [reason.code for reason in decision.not_scaled] == ["AlreadyAtDesiredCapacity"]


def test_the_largest_wins_and_all_must_agree_to_scale_in():
    loose, tight = tracking(50), tracking(20)
    high = [trigger(loose, 60.0, name="a"), trigger(tight, 60.0, name="b")]
    assert decide(state(4), high, now_s=0).capacity == 12
    low = [trigger(loose, 10.0, is_below=True, name="a"), trigger(tight, 10.0, is_below=True, name="b")]
    assert decide(state(10), low, now_s=0).capacity == 5
    disagreeing = [low[0], trigger(tight, 19.0, is_below=True, is_alarm=False, name="b")]
    assert decide(state(10), disagreeing, now_s=0).capacity is None
    disabled = tracking(20, is_scale_in_disabled=True)
    assert decide(state(10), [low[0], trigger(disabled, 19.0, is_below=True, is_alarm=False)], now_s=0).capacity == 2


def test_a_step_policy_scales_in_though_target_tracking_does_not_agree():
    waiting = trigger(tracking(), 48.0, is_below=True, is_alarm=False)
    shrinking = trigger(step.policy_from_json(IN_STEPS), 40.0, is_below=True)
    assert decide(state(20), [waiting, shrinking], now_s=0).capacity == 18


def test_scale_out_cancels_the_cooldown_of_a_scale_in():
    last = Scaling(direction="in", from_capacity=6, cooldown_s=300, ended_s=100)
    assert decide(state(4, last=last), [trigger(tracking(), 10.0, is_below=True)], now_s=200).capacity is None
    assert decide(state(4, last=last), [trigger(tracking(), 100.0)], now_s=200).capacity == 8


def test_capacity_added_by_a_step_or_by_target_tracking_is_not_added_twice():
    """Twenty wait: a step has brought the first instance, target tracking three more, and the metric lags behind."""
    left_zero = Scaling(direction="out", from_capacity=0, cooldown_s=300, ended_s=100)
    policy = tracking(5, scale_out_cooldown_s=300)
    decided = decide(state(1, last=left_zero), [trigger(policy, 20.0)], now_s=200)
    assert decided.capacity == 4
    assert decided.scaling is not None
    ended = replace(decided.scaling, ended_s=210.0)
    assert decide(state(4, last=ended), [trigger(policy, 17.5)], now_s=220).capacity is None
    assert decide(state(4, last=ended), [trigger(policy, 30.0)], now_s=220).capacity == 6, "that is more than before"


def test_target_tracking_never_leaves_zero_but_a_step_does():
    assert decide(state(0), [trigger(tracking(), 100.0)], now_s=0).capacity is None
    policy = step.StepScaling(adjustment_type="ChangeInCapacity", steps=(step.StepAdjustment(lower=0, adjustment=1),))
    assert decide(state(0), [trigger(policy, 60.0)], now_s=0).capacity == 1


@pytest.mark.parametrize(
    ("target", "asked", "codes"),
    [
        (state(4, max_capacity=4), trigger(tracking(), 100.0), ["AlreadyAtMaxCapacity"]),
        (state(4, min_capacity=4), trigger(tracking(), 1.0, is_below=True), ["AlreadyAtMinCapacity"]),
        (state(1), trigger(tracking(), 20.0, is_below=True), ["AutoScalingAnticipatedFlapping"]),
        (state(1, is_scalable=False), trigger(tracking(), 100.0), ["TargetServicePutResourceAsUnscalable"]),
        (state(4, suspensions=SuspendedState(is_out=True)), trigger(tracking(), 100.0), []),
        (state(4, suspensions=SuspendedState(is_in=True)), trigger(tracking(), 1.0, is_below=True), []),
    ],
)
def test_the_reason_for_not_scaling_is_reported(target, asked, codes):
    decision = decide(target, [asked], now_s=0)
    assert decision.capacity is None
    assert [reason.code for reason in decision.not_scaled] == codes


def test_a_reason_names_the_capacity_that_stands_in_the_way():
    (reason,) = decide(state(4, max_capacity=4), [trigger(tracking(), 100.0)], now_s=0).not_scaled
    assert (reason.max_capacity, reason.min_capacity, reason.current_capacity) == (4, None, None)
    (reason,) = decide(state(4, min_capacity=4), [trigger(tracking(), 1.0, is_below=True)], now_s=0).not_scaled
    assert (reason.max_capacity, reason.min_capacity, reason.current_capacity) == (None, 4, None)
    at_minimum = decide(state(1, min_capacity=1), [trigger(tracking(), 20.0, is_below=True)], now_s=0)
    assert [reason.code for reason in at_minimum.not_scaled] == ["AlreadyAtMinCapacity"]
    (reason,) = decide(state(1), [trigger(tracking(), 20.0, is_below=True)], now_s=0).not_scaled
    assert (reason.max_capacity, reason.min_capacity, reason.current_capacity) == (None, None, 1)


def test_what_a_cooldown_or_a_suspension_prevents_has_no_reason():
    """AWS has no codes for these."""
    low = [trigger(tracking(), 20.0, is_below=True)]
    scaled_in = Scaling(direction="in", from_capacity=2, cooldown_s=300, ended_s=100)
    assert decide(state(1, last=scaled_in), low, now_s=200).not_scaled == ()
    assert decide(state(1, suspensions=SuspendedState(is_in=True)), low, now_s=200).not_scaled == ()
    scaled_out = Scaling(direction="out", from_capacity=2, cooldown_s=300, ended_s=100)
    assert decide(state(4, last=scaled_out), [trigger(tracking(), 80.0)], now_s=200).not_scaled == ()
    assert SuspendedState() == SuspendedState(is_in=False, is_out=False, is_scheduled=False)


@pytest.mark.parametrize(
    ("ended_s", "now_s", "expected"), [(None, 1e9, True), (100.0, 159.0, True), (100.0, 160.0, False)]
)
def test_a_scaling_cools_down_from_its_end(ended_s, now_s, expected):
    assert Scaling(direction="in", from_capacity=0, cooldown_s=60.0, ended_s=ended_s).is_cooling(now_s) == expected


@pytest.mark.parametrize(
    ("target", "asked", "expected"),
    [
        (state(4), trigger(tracking(scale_out_cooldown_s=7), 80.0), ("out", 4, 7)),
        (state(4), trigger(tracking(scale_in_cooldown_s=8), 10.0, is_below=True), ("in", 4, 8)),
        (state(4), trigger(BY_ONE, 60.0), ("out", 4, 300)),
        (state(20), trigger(step.policy_from_json(IN_STEPS), 30.0, is_below=True), ("in", 20, 300)),
        # A chain of scale-outs within each other's cooldown goes on from the first, and from zero only by steps.
        (state(4, last=cooling(2)), trigger(tracking(), 150.0), ("out", 2, 300)),
        (state(4, last=cooling(4)), trigger(BY_ONE, 60.0), ("out", 4, 300)),
        (state(0, last=cooling(0)), trigger(BY_ONE, 60.0), ("out", 0, 300)),
        (state(1, last=cooling(0)), trigger(tracking(), 150.0), ("out", 1, 300)),
        (state(4, last=cooling(2, direction="in")), trigger(tracking(), 150.0), ("out", 4, 300)),
        (state(4, last=cooling(2, cooldown_s=99)), trigger(tracking(), 150.0), ("out", 4, 300)),
    ],
)
def test_the_caller_keeps_the_direction_the_first_capacity_and_the_cooldown_of_the_policy(target, asked, expected):
    scaling = decide(target, [asked], now_s=199).scaling
    assert (scaling.direction, scaling.from_capacity, scaling.cooldown_s) == expected
    assert scaling.ended_s is None


@pytest.mark.parametrize(
    ("policy", "values", "alarm_state", "gap_s", "now_s", "expected"),
    [
        (BY_ONE, (60.0,), "ALARM", 0, 0, 5),
        (BY_ONE, (60.0,), "OK", 0, 0, None),
        (BY_ONE, (60.0,), "INSUFFICIENT_DATA", 0, 0, None),
        (BY_ONE, (), "ALARM", 0, 0, 5),  # as at the threshold
        (tracking(), (), "ALARM", 0, 0, None),
        (tracking(), (80.0,), "OK", 0, 0, None),
        (tracking(), (80.0,), "ALARM", 0, 0, 7),
        # An alarm by missing data counts once there could have been data for as long.
        (BY_ONE, (), "ALARM", 60, 159, None),
        (BY_ONE, (), "ALARM", 60, 160, 5),
        (BY_ONE, (), "ALARM", 0, 100, 5),
    ],
)
def test_a_policy_acts_on_an_alarm_with_the_values_that_it_needs(policy, values, alarm_state, gap_s, now_s, expected):
    asked = replace(trigger(policy, 0.0), values=values, state=alarm_state, gap_s=gap_s)
    assert decide(state(4, since_s=100.0), [asked], now_s=now_s).capacity == expected


@pytest.mark.parametrize("comparison", get_args(Comparison))
def test_target_tracking_scales_in_by_alarms_on_small_values(comparison):
    asked = replace(trigger(tracking(), 10.0), comparison=comparison)
    assert asked.is_alarm_below == comparison.startswith("Less")
    assert decide(state(4), [asked], now_s=0).capacity == (1 if asked.is_alarm_below else None)


def test_a_proposal_is_kept_within_the_bounds():
    assert decide(state(4, max_capacity=5), [trigger(tracking(), 100.0)], now_s=0).capacity == 5
    assert decide(state(4, min_capacity=3), [trigger(tracking(), 1.0, is_below=True)], now_s=0).capacity == 3
    exact = step.StepScaling(adjustment_type="ExactCapacity", steps=(step.StepAdjustment(lower=0, adjustment=3),))
    assert decide(state(4, min_capacity=0), [trigger(exact, 60.0)], now_s=0).capacity == 3
    assert decide(state(1), [trigger(exact, 60.0)], now_s=0).capacity == 3
    nothing = step.StepScaling(adjustment_type="ChangeInCapacity", steps=(step.StepAdjustment(lower=20, adjustment=3),))
    assert decide(state(4), [trigger(nothing, 60.0)], now_s=0).capacity is None


def test_new_bounds_ignore_cooldowns():
    assert capacity_within_bounds(state(4, min_capacity=6)) == 6
    assert capacity_within_bounds(state(4, max_capacity=2)) == 2
    assert capacity_within_bounds(state(4)) is None


@st.composite
def situations(draw):
    low = draw(st.integers(0, 10))
    high = draw(st.integers(low, 30))
    desired = draw(st.integers(low, high))
    last = draw(
        st.none()
        | st.builds(
            Scaling,
            direction=st.sampled_from(["in", "out"]),
            from_capacity=st.integers(0, 30),
            cooldown_s=st.sampled_from([0.0, 300.0]),
            ended_s=st.none() | st.floats(0, 1000),
        )
    )
    target = state(desired, in_service=draw(st.integers(0, 30)), min_capacity=low, max_capacity=high, last=last)
    policies = st.sampled_from(
        [tracking(), tracking(20), step.policy_from_json(OUT_STEPS), step.policy_from_json(IN_STEPS)]
    )
    triggers = st.builds(trigger, policies, st.floats(0, 1e6), is_below=st.booleans(), is_alarm=st.booleans())
    return target, draw(st.lists(triggers, max_size=4))


@given(situations(), st.floats(0, 2000))
def test_never_outside_the_bounds_and_never_in_within_a_cooldown(situation, now_s):
    target, triggers = situation
    decision = decide(target, triggers, now_s=now_s)
    if decision.capacity is None:
        return
    assert decision.capacity != target.desired
    assert target.min_capacity <= decision.capacity <= target.max_capacity
    if decision.capacity < target.desired and target.last and target.last.direction == "in":
        assert not target.last.is_cooling(now_s)


@given(st.floats(0.01, 5000), st.integers(1, 100))
def test_a_constant_load_is_met_by_one_decision(load, begin):
    """From any capacity, one scaling later the metric is at or below the target, and nothing is scaled again."""
    policy = tracking(50)
    capacity = begin
    for round_number in range(3):
        metric = load / capacity
        triggers = [
            trigger(policy, metric, is_alarm=metric > 50),
            trigger(policy, metric, is_below=True, is_alarm=metric < 45),
        ]
        found = decide(state(capacity), triggers, now_s=1000.0 * round_number).capacity
        if round_number:
            assert found is None
        capacity = found or capacity
    assert capacity == 100 or load / capacity <= 50 * (1 + 1e-6)
    if begin > capacity:
        assert capacity == max(1, math.ceil(load / 50 - 1e-6))


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        ([], "least one"),
        ([{"ScalingAdjustment": 1}], "both"),
        ([{"MetricIntervalLowerBound": 0, "MetricIntervalUpperBound": 5, "ScalingAdjustment": 1}], "UpperBound open"),
        ([{"MetricIntervalUpperBound": 0, "MetricIntervalLowerBound": -5, "ScalingAdjustment": 1}], "LowerBound open"),
        ([{"MetricIntervalLowerBound": 5, "MetricIntervalUpperBound": 5, "ScalingAdjustment": 1}], "greater"),
        (
            [
                {"MetricIntervalLowerBound": 0, "MetricIntervalUpperBound": 5, "ScalingAdjustment": 1},
                {"MetricIntervalLowerBound": 6, "ScalingAdjustment": 1},
            ],
            "gap",
        ),
    ],
)
def test_steps_that_aws_refuses_are_refused(steps, word):
    with pytest.raises(ValueError, match=word):
        step.policy_from_json({"AdjustmentType": "ChangeInCapacity", "StepAdjustments": steps})


@pytest.mark.parametrize("config", [{}, {"TargetValue": 0}, {"TargetValue": 5}, {"TargetValue": math.inf}])
def test_target_tracking_needs_a_target_and_a_metric(config):
    with pytest.raises(ValueError, match=r"TargetValue|Specification"):
        target_tracking.policy_from_json(config)
