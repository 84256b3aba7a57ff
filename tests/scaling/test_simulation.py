import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.scaling.simulated_plan import plan_from_json
from headrace.scaling.simulation import FleetModel, Result, simulate

FAST = {"PredefinedMetricType": "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"}
TRACKING = {"TargetValue": 4.0, "PredefinedMetricSpecification": FAST}
MODEL = FleetModel(concurrency=8, service_s=2.0, start_s=30.0)


def run(requests, document=TRACKING, model=MODEL, start_s=0.0, **bounds) -> Result:
    return simulate(requests, plan_from_json(document, start_s=start_s, **bounds), model, start_s=start_s)


def test_a_load_that_grows_is_met_after_a_minute_and_a_start():
    """2/s of 2 s are 4 at once: one copy. 3.5/s are 7: two; the sixth value above 4 comes at 600 + 60 s."""
    result = run([20.0] * 60 + [35.0] * 60, minimum=1, maximum=10)
    assert [(a.time_s, a.capacity) for a in result.activities] == [(660.0, 2)]
    assert [tick.serving for tick in result.ticks if tick.time_s in (680.0, 690.0)] == [1, 2]


def test_what_waits_counts_as_load():
    """6/s are more than a copy's 4/s: after a minute 120 wait, and all that is allowed is started."""
    result = run([20.0] * 60 + [60.0] * 60, minimum=1, maximum=10)
    assert [(a.time_s, a.capacity) for a in result.activities] == [(660.0, 10)]


def test_an_idle_fleet_goes_to_zero_and_a_request_wakes_it():
    result = run([20.0] * 6 + [0.0] * 100 + [10.0] + [0.0] * 10, minimum=0, maximum=4)
    assert result.activities[0].cause == "a request woke it"
    zero = next(a for a in result.activities if a.capacity == 0)
    assert zero.time_s == pytest.approx(60 + 30 + 900, abs=60)
    assert result.activities[-1].cause == "a request woke it"
    assert result.lost == 0


def test_without_waking_requests_at_zero_fail_as_on_aws_until_a_step_policy_acts():
    document = {
        "MinCapacity": 0,
        "Policies": [
            {
                "PolicyName": "from-zero",
                "StepScalingPolicyConfiguration": {
                    "AdjustmentType": "ChangeInCapacity",
                    "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}],
                },
            }
        ],
        "Alarms": [
            {
                "AlarmName": "no-capacity",
                "MetricName": "NoCapacityInvocationFailures",
                "Statistic": "Sum",
                "Period": 60,
                "EvaluationPeriods": 1,
                "Threshold": 1,
                "ComparisonOperator": "GreaterThanOrEqualToThreshold",
                "AlarmActions": ["from-zero"],
            }
        ],
    }
    strict = FleetModel(concurrency=8, service_s=2.0, start_s=30.0, wakes=False)
    result = run([1.0] * 60, document, strict)
    assert [(a.time_s, a.capacity) for a in result.activities] == [(60.0, 1)]
    assert result.lost == 9


def test_a_schedule_raises_the_floor_for_the_working_day():
    document = {
        "MinCapacity": 1,
        "MaxCapacity": 10,
        "ScheduledActions": [
            {"Schedule": "cron(0 9 * * ? *)", "ScalableTargetAction": {"MinCapacity": 5}},
            {"Schedule": "cron(0 17 * * ? *)", "ScalableTargetAction": {"MinCapacity": 1, "MaxCapacity": 1}},
        ],
    }
    result = run([1.0] * 8640, document)
    assert [(a.time_s / 3600, a.capacity, a.cause) for a in result.activities] == [
        (9.0, 5, "minimum capacity was set to 5"),
        (17.0, 1, "maximum capacity was set to 1"),
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 2000), min_size=1, max_size=200), st.integers(0, 3), st.integers(3, 12), st.booleans())
def test_no_request_is_forgotten_and_no_bound_is_crossed(requests, low, high, wakes):
    model = FleetModel(concurrency=4, service_s=3.0, start_s=20.0, wakes=wakes)
    result = run(requests, model=model, minimum=low, maximum=high)
    answered = sum(count for _, count in result.latencies)
    assert answered + result.lost + result.ticks[-1].queue == pytest.approx(sum(requests), abs=1e-3)
    assert all(low <= activity.capacity <= high for activity in result.activities)
    assert all(0 <= tick.serving <= high for tick in result.ticks)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.5, 300))
def test_a_constant_load_settles(per_step):
    """After an hour nothing moves any more: no flapping."""
    result = run([per_step] * 720, minimum=1, maximum=60)
    assert all(activity.time_s < 3600 for activity in result.activities)
    wanted = max(1, math.ceil(per_step / 10 * 2 / 4 - 1e-9))
    assert wanted <= result.ticks[-1].serving <= wanted / 0.9 + 1


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({}, "Policies"),
        ({"TargetValue": 1, "PredefinedMetricSpecification": {"PredefinedMetricType": "x"}}, "PredefinedMetricType"),
        ({"TargetValue": 1, "CustomizedMetricSpecification": {"MetricName": "GPUUtilization"}}, "GPUUtilization"),
        ({**TRACKING, "MinCapacity": 5, "MaxCapacity": 2}, "MinCapacity"),
        ({"Policies": [{"PolicyName": "p", "PolicyType": "PredictiveScaling"}]}, "predictive"),
    ],
)
def test_what_cannot_be_simulated_is_said(document, word):
    with pytest.raises(ValueError, match=word):
        plan_from_json(document, start_s=0.0)
