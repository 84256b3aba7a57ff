import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.platform.autoscaling.simulation.plan import scenario_from_json
from headrace.platform.autoscaling.simulation.simulator import FleetModel, SimulationResult, simulate

FAST = {"PredefinedMetricType": "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"}
TRACKING = {"TargetValue": 4.0, "PredefinedMetricSpecification": FAST}
MODEL = FleetModel(concurrency=8, service_s=2.0, start_s=30.0)


def run(requests, document=TRACKING, model=MODEL, start_s=0.0, **bounds) -> SimulationResult:
    return simulate(requests, scenario_from_json(document, start_s=start_s, **bounds), model, start_s=start_s)


def latency(statistic, name="ModelLatency", **more):
    """A query of a latency, in microseconds."""
    metric = {"Namespace": "AWS/SageMaker", "MetricName": name}
    return {"Id": "m1", "MetricStat": {"Metric": metric, "Stat": statistic}, **more}


def tracked(*queries, target=1.0):
    """A target-tracking configuration on metric math."""
    return {"TargetValue": target, "CustomizedMetricSpecification": {"Metrics": list(queries)}}


def test_a_percentile_of_the_latency_can_be_tracked():
    """One copy answers 4/s; 5/s wait ever longer, until the median is above 4 s for three minutes."""
    policy = tracked(latency("p50"), target=4e6)
    calm = run([30.0] * 180, policy, minimum=1, maximum=10)
    assert calm.activities == ()
    result = run([50.0] * 180, policy, minimum=1, maximum=10)
    assert result.activities[0].time_s >= 180
    assert result.ticks[-1].serving > 1


def test_the_backlog_per_copy_of_the_guide_can_be_tracked():
    """The guide's example, m1 / m2: 6/s where 4/s are answered; after three minutes 368 are there, for 100 each: 4."""
    waiting = {"Namespace": "AWS/SageMaker", "MetricName": "ApproximateBacklogSize"}
    copies = {"Namespace": "AWS/SageMaker", "MetricName": "CurrentInstanceCount"}
    policy = tracked(
        {"Id": "m1", "MetricStat": {"Metric": waiting, "Stat": "Maximum"}, "ReturnData": False},
        {"Id": "m2", "MetricStat": {"Metric": copies, "Stat": "Average"}, "ReturnData": False},
        {"Id": "e1", "Expression": "m1 / m2"},
        target=100.0,
    )
    model = FleetModel(concurrency=8, service_s=2.0, start_s=30.0, timeout_s=3600)
    result = run([60.0] * 18 + [0.0] * 180, policy, model, minimum=1, maximum=10)
    first = result.activities[0]
    assert (first.time_s, first.capacity) == (180.0, 4)
    assert result.lost == 0


def test_a_serving_copy_without_requests_publishes_zero_invocations():
    """24 a minute are asked, 6 wanted for each: four copies; fifteen minutes without a request, and one is left."""
    predefined = {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"}
    policy = {"TargetValue": 6.0, "PredefinedMetricSpecification": predefined}
    result = run([4.0] * 60 + [0.0] * 200, policy, minimum=1, maximum=10)
    assert [a.capacity for a in result.activities] == [4, 1]
    assert result.activities[1].time_s == pytest.approx(600 + 900, abs=60)


def test_a_backlog_scales_an_asynchronous_endpoint_from_zero():
    """AWS's guide on asynchronous endpoints: a step policy leaves zero, target tracking goes on and back to zero."""
    document = {
        "MinCapacity": 0,
        "MaxCapacity": 5,
        "Policies": [
            {
                "PolicyName": "backlog",
                "TargetTrackingScalingPolicyConfiguration": {
                    "TargetValue": 5.0,
                    "CustomizedMetricSpecification": {
                        "MetricName": "ApproximateBacklogSizePerInstance",
                        "Namespace": "AWS/SageMaker",
                        "Dimensions": [{"Name": "EndpointName", "Value": "e"}],
                        "Statistic": "Average",
                    },
                },
            },
            {
                "PolicyName": "from-zero",
                "StepScalingPolicyConfiguration": {
                    "AdjustmentType": "ChangeInCapacity",
                    "MetricAggregationType": "Average",
                    "Cooldown": 300,
                    "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}],
                },
            },
        ],
        "Alarms": [
            {
                "AlarmName": "has-backlog",
                "MetricName": "HasBacklogWithoutCapacity",
                "Namespace": "AWS/SageMaker",
                "Statistic": "Average",
                "EvaluationPeriods": 2,
                "DatapointsToAlarm": 2,
                "Threshold": 1,
                "ComparisonOperator": "GreaterThanOrEqualToThreshold",
                "TreatMissingData": "missing",
                "Dimensions": [{"Name": "EndpointName", "Value": "e"}],
                "Period": 60,
                "AlarmActions": ["from-zero"],
            }
        ],
    }
    model = FleetModel(concurrency=1, service_s=10.0, start_s=60.0, timeout_s=86_400, at_zero="wait")
    result = run([0.0] * 6 + [3.0] * 90 + [0.0] * 400, document, model)
    causes = [(a.capacity, a.cause.split()[-1]) for a in result.activities]
    assert causes[0] == (1, "from-zero")
    assert result.activities[0].time_s == 180.0
    assert (5, "backlog") in causes
    assert causes[-1] == (0, "backlog")
    assert result.lost == 0
    assert result.num_woken == 0


def test_a_growing_load_is_met_after_a_minute_and_a_start():
    """2/s of 2 s are 4 at once: one copy. 3.5/s are 7: two; the sixth value above 4 comes at 600 + 60 s."""
    result = run([20.0] * 60 + [35.0] * 60, minimum=1, maximum=10)
    assert [(a.time_s, a.capacity) for a in result.activities] == [(660.0, 2)]
    assert [tick.serving for tick in result.ticks if tick.time_s in (680.0, 690.0)] == [1, 2]


def test_waiting_requests_count_as_load():
    """6/s are more than a copy's 4/s: after a minute 120 wait, and all that is allowed is started."""
    result = run([20.0] * 60 + [60.0] * 60, minimum=1, maximum=10)
    assert [(a.time_s, a.capacity) for a in result.activities] == [(660.0, 10)]


def test_an_idle_fleet_goes_to_zero_and_a_request_wakes_it():
    result = run([20.0] * 6 + [0.0] * 100 + [10.0] + [0.0] * 10, minimum=0, maximum=4)
    assert result.activities[0].cause == "a request arrived while capacity was 0"
    zero = next(a for a in result.activities if a.capacity == 0)
    assert zero.time_s == pytest.approx(60 + 30 + 900, abs=60)
    assert result.activities[-1].cause == "a request arrived while capacity was 0"
    assert result.num_woken == 2
    assert result.lost == 0


@pytest.mark.parametrize(("start_s", "held"), [(2.0, 2.0), (25.0, 25.0)])
def test_a_request_that_wakes_a_copy_is_held_until_it_serves(start_s, held):
    """One a second: those that come before it serves are held, for its start at most, and answered."""
    model = FleetModel(concurrency=8, service_s=2.0, start_s=start_s)
    result = run([0.0] * 6 + [10.0] * 6 + [0.0] * 6, model=model, minimum=0, maximum=1)
    assert result.held == pytest.approx(held)
    assert start_s <= result.longest_hold_s <= start_s + 10
    assert result.lost == 0
    assert result.latency_s(1.0) == pytest.approx(result.longest_hold_s + 2, abs=5)
    assert result.latency_s(0.25) < 5


def test_a_lonely_request_is_held_as_long_as_a_copy_takes_to_start():
    model = FleetModel(concurrency=8, service_s=2.0, start_s=3.0)
    result = run([0.0] * 6 + [1.0] + [0.0] * 6, model=model, minimum=0, maximum=1)
    assert (result.held, result.latencies[0][0]) == (1.0, pytest.approx(5.0, abs=0.5))


def test_nothing_is_decided_while_copies_start():
    """A start takes ten minutes: the load that doubles meanwhile is answered when it has ended, and at once."""
    model = FleetModel(concurrency=8, service_s=2.0, start_s=600.0, timeout_s=3600)
    result = run([20.0] * 60 + [35.0] * 30 + [80.0] * 60, model=model, minimum=1, maximum=10)
    assert [a.time_s for a in result.activities][:2] == [660.0, 1260.0]


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
    strict = FleetModel(concurrency=8, service_s=2.0, start_s=30.0, at_zero="fail")
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
@given(
    st.lists(st.floats(0, 2000), min_size=1, max_size=200),
    st.integers(0, 3),
    st.integers(3, 12),
    st.sampled_from(["wake", "fail", "wait"]),
    st.sampled_from([0.0, 3.0, 20.0]),
)
def test_every_request_is_counted_and_the_bounds_are_kept(requests, low, high, at_zero, start_s):
    model = FleetModel(concurrency=4, service_s=3.0, start_s=start_s, at_zero=at_zero)
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
        (tracked(latency("Middle")), "Middle"),
        (tracked(latency("p50", name="FirstChunkLatency")), "FirstChunkLatency"),
        (tracked({"Id": "e", "Expression": "m9 / 2"}, latency("p50", ReturnData=False)), "m9"),
        (tracked({"Id": "e", "Expression": "SLICE(m1)"}, latency("p50", ReturnData=False)), "SLICE"),
        (tracked(latency("p50"), {"Id": "e", "Expression": "m1 / 2"}), "ReturnData"),
        (tracked({"Id": "e"}), "either MetricStat or Expression"),
        ({**TRACKING, "MinCapacity": 5, "MaxCapacity": 2}, "MinCapacity"),
        ({"Policies": [{"PolicyName": "p", "PolicyType": "PredictiveScaling"}]}, "predictive"),
        ({**TRACKING, "Alarms": [{"AlarmName": "lonely", "AlarmActions": ["targets"]}]}, "lonely"),
    ],
)
def test_a_document_that_cannot_be_simulated_is_refused(document, word):
    with pytest.raises(ValueError, match=word):
        scenario_from_json(document, start_s=0.0)
