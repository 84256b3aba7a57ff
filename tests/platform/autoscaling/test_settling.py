"""New targets are not idle, and the autoscaler's own changes settle before the next decision."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.platform.autoscaling.api.requests import read_key
from headrace.platform.autoscaling.loops.autoscaler import Autoscaler
from headrace.platform.autoscaling.records.capacity import read_capacity, write_capacity
from headrace.platform.cloudwatch.metrics.metric import Metric
from tests.platform.control.support import AWS_SCOPE

from .support import IDENTITY, World
from .test_autoscaler import alarm, steps

WORK = Metric(namespace="mine", name="Work")
OUT_BY_ONE = {
    "AdjustmentType": "ChangeInCapacity",
    "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
    "Cooldown": 0,
}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def idle_alarm(world: World, **members: Any) -> None:
    """An alarm on thirty seconds without a value, for a metric without measurements."""
    arn = world.put_policy("idle", **steps(0))["PolicyARN"]
    alarm(world, "idle", arn, **{"TreatMissingData": "breaching", **members})


def test_a_new_target_is_idle_after_its_idle_time_and_not_at_once(world: World) -> None:
    world.now_s += 3600
    world.register(0, 2)
    idle_alarm(world)
    world.pass_time(20)
    assert world.capacities == [1]
    world.pass_time(20)
    assert world.capacities == [1, 0]


def test_a_target_that_just_came_into_service_is_not_idle_yet(world: World) -> None:
    world.register(0, 2)
    world.pass_time(600)
    write_capacity(world.store, AWS_SCOPE, read_key(IDENTITY), 2)
    world.reconcile()
    idle_alarm(world)
    world.pass_time(20)
    assert world.capacities[-1] == 2
    world.pass_time(20)
    assert world.capacities[-1] == 0


def test_a_few_values_with_gaps_are_no_idle_time(world: World) -> None:
    """It has been awake for 20 s, and measured as idle; the third period is only missing."""
    world.register(0, 2)
    idle_alarm(world)
    for _ in range(2):
        world.series.put(WORK, 0.0, now_s=world.now_s + 5)
        world.pass_time(10)
    assert world.capacities == [1]
    world.series.put(WORK, 0.0, now_s=world.now_s + 5)
    world.pass_time(10)
    assert world.capacities[-1] == 0


def test_an_action_on_insufficient_data_waits_as_long(world: World) -> None:
    world.register(0, 2)
    arn = world.put_policy("idle", **steps(0))["PolicyARN"]
    alarm(world, "idle", arn, AlarmActions=[], InsufficientDataActions=[arn])
    world.pass_time(20)
    assert world.capacities == [1]
    world.pass_time(20)
    assert world.capacities[-1] == 0


def test_downtime_of_the_platform_is_no_idle_time(world: World) -> None:
    world.register(0, 2)
    idle_alarm(world)
    world.series.put(WORK, 5.0, now_s=world.now_s + 5)
    world.pass_time(20)
    world.now_s += 3600
    world.scaler = Autoscaler(store=world.store, series=world.series, aws_scope=AWS_SCOPE, clock=lambda: world.now_s)
    world.pass_time(20)
    assert world.capacities == [1]
    world.pass_time(20)
    assert world.capacities[-1] == 0


def test_values_that_breach_count_at_once(world: World) -> None:
    world.register(0, 4)
    arn = world.put_policy("busy", **steps(3, MetricIntervalLowerBound=0.0))["PolicyARN"]
    alarm(world, "busy", arn, ComparisonOperator="GreaterThanThreshold", DatapointsToAlarm=1)
    world.series.put(WORK, 5.0, now_s=world.now_s + 5)
    world.pass_time(20)
    assert world.capacities == [1, 3]


def test_a_settling_change_of_the_autoscaler_is_no_failure_and_the_next_follows_at_once(world: World) -> None:
    world.register(1, 4)
    config = {"PolicyType": "StepScaling", "StepScalingPolicyConfiguration": OUT_BY_ONE}
    arn = world.put_policy("busy", **config)["PolicyARN"]
    alarm(world, "busy", arn, ComparisonOperator="GreaterThanThreshold", EvaluationPeriods=1)
    for _ in range(3):
        world.series.put(WORK, 5.0, now_s=world.now_s + 5)
        world.now_s += 10
        world.scaler.run_pass()
    assert [activity["StatusCode"] for activity in world.activities(with_not_scaled=True)] == ["InProgress"]
    world.reconcile()
    world.scaler.run_pass()
    told = [(activity["StatusCode"], activity["Description"]) for activity in world.activities(with_not_scaled=True)]
    assert sorted(told) == [
        ("InProgress", "Setting desired instance count to 3."),
        ("Successful", "Setting desired instance count to 2."),
    ]


def test_a_users_change_is_a_reason_not_to_scale_until_it_has_settled(world: World) -> None:
    world.register(1, 4)
    config = {"PolicyType": "StepScaling", "StepScalingPolicyConfiguration": OUT_BY_ONE}
    arn = world.put_policy("busy", **config)["PolicyARN"]
    alarm(world, "busy", arn, ComparisonOperator="GreaterThanThreshold", EvaluationPeriods=1)
    world.scaler.run_pass()
    write_capacity(world.store, AWS_SCOPE, read_key(IDENTITY), 2)
    for _ in range(3):
        world.series.put(WORK, 5.0, now_s=world.now_s + 5)
        world.now_s += 10
        world.scaler.run_pass()
    (told,) = world.activities(with_not_scaled=True)
    assert told["NotScaledReasons"] == [{"Code": "TargetServicePutResourceAsUnscalable"}]
    world.reconcile()
    world.scaler.run_pass()
    capacity = read_capacity(world.store, read_key(IDENTITY))
    assert capacity is not None
    assert capacity.desired == 3
