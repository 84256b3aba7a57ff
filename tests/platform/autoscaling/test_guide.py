"""Cases of Application Auto Scaling's user guide and API reference, worked by hand."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.platform.autoscaling.planning import step_scaling as step
from headrace.platform.autoscaling.planning import target_tracking
from headrace.platform.autoscaling.planning.decision import (
    Decision,
    Scaling,
    SuspendedState,
    capacity_within_bounds,
    decide,
)
from headrace.platform.autoscaling.planning.schedule import Window, due_time, next_time, parse, utc_s
from headrace.platform.autoscaling.simulation.fleet import FleetModel
from headrace.platform.autoscaling.simulation.plan import scenario_from_json
from headrace.platform.autoscaling.simulation.simulator import simulate
from headrace.platform.cloudwatch.alarms.rules import rule_from_json

from .test_decision import IN_STEPS, OUT_STEPS, state, tracking, trigger

CPU_STEPS = {
    "AdjustmentType": "ChangeInCapacity",
    "MetricAggregationType": "Average",
    "Cooldown": 60,
    "StepAdjustments": [
        {"MetricIntervalLowerBound": 0, "MetricIntervalUpperBound": 15, "ScalingAdjustment": 1},
        {"MetricIntervalLowerBound": 15, "MetricIntervalUpperBound": 25, "ScalingAdjustment": 2},
        {"MetricIntervalLowerBound": 25, "ScalingAdjustment": 3},
    ],
}


@pytest.mark.parametrize(
    ("value", "added"), [(70.0, 1), (84.9, 1), (85.0, 2), (94.9, 2), (95.0, 3), (100.0, 3), (69.9, 0)]
)
def test_the_steps_of_the_command_line_example(value, added):
    """Creating a step scaling policy: +1 from 70 %, +2 from 85 %, +3 from 95 %."""
    asked = trigger(step.policy_from_json(CPU_STEPS), value, threshold=70.0)
    assert (decide(state(4), [asked], now_s=0).capacity or 4) == 4 + added


@pytest.mark.parametrize(("value", "capacity"), [(50.0, 14), (40.1, 14), (40.0, 13), (30.1, 13), (30.0, 10), (0.0, 10)])
def test_below_the_threshold_the_upper_bound_is_the_inclusive_one(value, capacity):
    """Unchanged above 40 %, -10 % of 14 from 40 % down, -30 % from 30 % down, each rounded towards zero."""
    asked = trigger(step.policy_from_json(IN_STEPS), value, is_below=True)
    assert (decide(state(14), [asked], now_s=0).capacity or 14) == capacity


@pytest.mark.parametrize(
    ("kind", "adjustment", "minimum", "begin", "expected"),
    [
        ("ChangeInCapacity", 5, None, 3, 8),
        ("ExactCapacity", 5, None, 3, 5),
        ("PercentChangeInCapacity", 10, None, 10, 11),
        ("PercentChangeInCapacity", 25, 2, 4, 6),
        ("PercentChangeInCapacity", 200, None, 10, 30),
        ("PercentChangeInCapacity", -1, None, 4, 3),
        ("PercentChangeInCapacity", -50, 3, 4, 1),
        ("ChangeInCapacity", -9, None, 4, 0),
    ],
)
def test_the_adjustment_types(kind, adjustment, minimum, begin, expected):
    config = {
        "AdjustmentType": kind,
        "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": adjustment}],
    }
    config |= {} if minimum is None else {"MinAdjustmentMagnitude": minimum}
    policy = step.policy_from_json(config)
    assert step.adjusted(policy, policy.steps[0], capacity=begin) == expected


@pytest.mark.parametrize(("aggregation", "capacity"), [("Average", 6), ("Minimum", 5), ("Maximum", 7), (None, 6)])
def test_the_values_of_an_alarm_are_aggregated_as_the_policy_says(aggregation, capacity):
    """72, 88 and 97: at least 70 (+1), 85.7 in the mean (+2), at most 97 (+3)."""
    config = {**CPU_STEPS, "MetricAggregationType": aggregation}
    asked = replace(trigger(step.policy_from_json(config), 0.0, threshold=70.0), values=(72.0, 88.0, 97.0))
    assert decide(state(4), [asked], now_s=0).capacity == capacity


def test_the_policy_that_provides_the_largest_capacity_wins():
    """PutScalingPolicy: +3 and +200 % of 10: the second is larger, and it scales out to 30."""
    three = step.StepScaling(adjustment_type="ChangeInCapacity", steps=(step.StepAdjustment(lower=0, adjustment=3),))
    tripled = step.StepScaling(
        adjustment_type="PercentChangeInCapacity", steps=(step.StepAdjustment(lower=0, adjustment=200),)
    )
    found = decide(state(10), [trigger(three, 60.0, name="a"), trigger(tripled, 60.0, name="b")], now_s=0)
    assert (found.capacity, found.trigger.policy_name) == (30, "b")


def test_missing_data_do_not_scale_in():
    """Considerations: without data the alarm is in INSUFFICIENT_DATA, and target tracking does not scale."""
    silent = trigger(tracking(), 0.0, is_below=True, is_alarm=False)
    assert decide(state(4), [silent], now_s=0).capacity is None
    one_knows = trigger(tracking(20), 1.0, is_below=True, name="b")
    assert decide(state(4), [silent, one_knows], now_s=0).capacity is None, "all have to agree"


def test_missing_data_start_a_step_policy_once_the_target_is_old_enough():
    """An alarm that treats missing data as breaching, and one that was there before there was anything to ask."""
    to_zero = step.StepScaling(adjustment_type="ExactCapacity", steps=(step.StepAdjustment(upper=0, adjustment=0),))
    idle = replace(trigger(to_zero, 0.0, is_below=True), values=(), gap_s=300.0)
    target = state(2, since_s=1000.0)
    assert decide(target, [idle], now_s=1299.0) == Decision()
    assert decide(target, [idle], now_s=1300.0).capacity == 0
    assert decide(target, [replace(idle, gap_s=0.0)], now_s=1000.0).capacity == 0, "a state that was set by hand"


def test_measured_zeros_scale_in_to_zero():
    """Choosing metrics: a metric that emits real zeros can scale in to 0, if the minimum is 0."""
    idle = trigger(tracking(), 0.0, is_below=True)
    assert decide(state(4), [idle], now_s=0).capacity == 0
    assert decide(state(4, min_capacity=1), [idle], now_s=0).capacity == 1


def test_scaling_out_is_by_the_newest_value_and_scaling_in_by_the_largest():
    """Out "proportionally to the metric as fast as it can", in "more gradually"; both round up."""
    rising = replace(trigger(tracking(50), 0.0), values=(55.0, 60.0, 90.0))
    assert decide(state(4), [rising], now_s=0).capacity == 8
    falling = replace(trigger(tracking(50), 0.0, is_below=True), values=(40.0, 20.0, 5.0))
    assert decide(state(10), [falling], now_s=0).capacity == 8


@pytest.mark.parametrize(
    ("suspended", "out", "shrunk"),
    [
        (SuspendedState(), 8, 2),
        (SuspendedState(is_out=True), None, 2),
        (SuspendedState(is_in=True), 8, None),
        (SuspendedState(is_in=True, is_out=True), None, None),
        (SuspendedState(is_scheduled=True), 8, 2),
    ],
)
def test_each_kind_of_scaling_is_suspended_alone(suspended, out, shrunk):
    target = state(4, suspensions=suspended)
    assert decide(target, [trigger(tracking(), 100.0)], now_s=0).capacity == out
    assert decide(target, [trigger(tracking(), 25.0, is_below=True)], now_s=0).capacity == shrunk


def test_a_schedule_ignores_cooldowns():
    last = Scaling(direction="in", from_capacity=9, cooldown_s=300, ended_s=100)
    assert capacity_within_bounds(state(4, last=last, max_capacity=2)) == 2
    assert capacity_within_bounds(state(4, last=last, min_capacity=6)) == 6


def test_the_classic_alarms_of_target_tracking():
    """Three minutes above the target, fifteen below 90 % of it; by ten seconds: one minute and fifteen."""
    policy = tracking(70)
    watched = {"MetricName": "m", "Namespace": "n", "Statistic": "Average"}
    found = target_tracking.alarm_specs(policy, watched, is_high_resolution=False)
    rules = {side: rule_from_json(spec) for side, spec in found.items()}
    assert (rules["High"].evaluation_periods, rules["High"].threshold) == (3, 70.0)
    assert (rules["Low"].evaluation_periods, rules["Low"].threshold) == (15, pytest.approx(63.0))
    fast = target_tracking.alarm_specs(policy, watched, is_high_resolution=True)
    assert [rule_from_json(spec).watched_s for spec in fast.values()] == [60.0, 900.0]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("at(2021-03-31T22:00:00)", None, "2021-03-31T00:00:00", "2021-03-31T22:00:00"),
        ("at(2021-01-31T17:00:00)", "America/New_York", "2021-01-31T00:00:00", "2021-01-31T22:00:00"),
        ("cron(0 9 * * ? *)", None, "2021-01-31T09:00:00", "2021-02-01T09:00:00"),
        ("cron(0 18 ? * MON-FRI *)", "Etc/GMT+9", "2021-01-29T18:00:00", "2021-01-30T03:00:00"),
        # Nine in New York is 14:00 UTC in winter and 13:00 from 14 March 2021 on.
        ("cron(0 9 * * ? *)", "America/New_York", "2021-03-13T00:00:00", "2021-03-13T14:00:00"),
        ("cron(0 9 * * ? *)", "America/New_York", "2021-03-14T00:00:00", "2021-03-14T13:00:00"),
        # 02:30 is not on 14 March; 01:30 is twice on 7 November, the first time before the clocks are set back.
        ("cron(30 2 * * ? *)", "America/New_York", "2021-03-13T12:00:00", "2021-03-15T06:30:00"),
        ("cron(30 1 * * ? *)", "America/New_York", "2021-11-07T00:00:00", "2021-11-07T05:30:00"),
        ("cron(30 1 * * ? *)", "America/New_York", "2021-11-07T05:30:00", "2021-11-08T06:30:00"),
    ],
)
def test_the_schedules_of_the_guide_in_their_time_zones(expression, zone, after, expected):
    found = next_time(parse(expression, zone), after_s=utc_s(after), window=Window(created_s=0.0))
    assert found is not None
    assert datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%dT%H:%M:%S") == expected


def test_a_rate_counts_from_its_start_and_stops_at_its_end():
    """Every 5 hours from 30 January 12:00 to 31 January 22:00: at 12, 17, 22, 03, 08, 13, 18."""
    window = Window(created_s=0.0, start_s=utc_s("2021-01-30T12:00:00"), end_s=utc_s("2021-01-31T22:00:00"))
    rate = parse("rate(5 hours)")
    looks = [utc_s("2021-01-30T00:00:00") + 600 * number for number in range(6 * 72)]
    due = [due_time(rate, after_s=at_s - 600, now_s=at_s, window=window) for at_s in looks]
    assert [datetime.fromtimestamp(at_s, UTC).hour for at_s in due if at_s is not None] == [12, 17, 22, 3, 8, 13, 18]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 400), st.integers(6, 60)), min_size=2, max_size=12),
    st.integers(0, 900),
    st.sampled_from([OUT_STEPS, None]),
)
def test_no_two_scale_ins_are_closer_than_their_cooldown(loads, cooldown_s, extra):
    """For any load, with and without a step policy too; a scale-out in between ends the cooldown."""
    requests = [load for load, length in loads for _ in range(length)]
    tracked = {
        "TargetValue": 4.0,
        "PredefinedMetricSpecification": {
            "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
        },
        "ScaleInCooldown": cooldown_s,
    }
    document = {"MinCapacity": 1, "MaxCapacity": 30, "Policies": [{"PolicyName": "t", TRACKING: tracked}]}
    if extra is not None:
        document["Policies"].append({"PolicyName": "s", "StepScalingPolicyConfiguration": extra})
        document["Alarms"] = [{**QUEUE_ALARM, "AlarmActions": ["s"]}]
    model = FleetModel(concurrency=8, service_s=2.0, start_s=20.0)
    result = simulate(requests, scenario_from_json(document, start_s=0.0), model)
    before, since_s = 1, None
    for activity in result.activities:
        assert 1 <= activity.capacity <= 30
        assert activity.capacity != before
        if activity.capacity > before:
            since_s = None
        else:
            assert since_s is None or activity.time_s >= since_s + cooldown_s
            since_s = activity.time_s
        before = activity.capacity


TRACKING = "TargetTrackingScalingPolicyConfiguration"
QUEUE_ALARM = {
    "AlarmName": "queue",
    "MetricName": "QueueDepth",
    "Statistic": "Maximum",
    "Period": 10,
    "EvaluationPeriods": 1,
    "Threshold": 5,
    "ComparisonOperator": "GreaterThanThreshold",
}
