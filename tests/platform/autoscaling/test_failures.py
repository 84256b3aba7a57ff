"""Unavailable capacity: how it is reported, and that it is retried with pauses."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.platform.autoscaling.api.requests import read_key
from headrace.platform.autoscaling.planning.policies import SCALING_POLICY
from headrace.platform.autoscaling.records.capacity import read_capacity, write_capacity
from headrace.platform.cloudwatch.alarms.records import ALARM
from headrace.platform.cloudwatch.metrics.metric import Metric
from headrace.platform.state.records import Kind, Unreadable
from tests.platform.control.support import AWS_SCOPE

from .support import IDENTITY, World
from .test_autoscaler import TRACKING, alarm, steps

WORK = Metric(namespace="mine", name="Work")


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def put_busy(world: World, adjustment: int, kind: str = "ExactCapacity") -> None:
    """Scale out while there is work."""
    config = steps(adjustment, kind, MetricIntervalLowerBound=0.0)
    alarm(world, "busy", world.put_policy("busy", **config)["PolicyARN"], ComparisonOperator="GreaterThanThreshold")


def work(world: World, seconds: int) -> None:
    for _ in range(seconds // 10):
        world.series.put(WORK, 5.0, now_s=world.now_s + 5)
        world.pass_time(10)
        world.scaler.run_pass()  # its own writes wake it


def told(world: World) -> list[tuple[str, str]]:
    return [(activity["StatusCode"], activity["StatusMessage"]) for activity in world.activities()]


def test_more_than_an_endpoint_may_have_fails_once_a_minute(world: World) -> None:
    world.register(1, 1000)
    put_busy(world, 500)
    work(world, 300)
    assert world.capacities == [1]
    found = told(world)
    assert 4 <= len(found) <= 5
    assert {code for code, _ in found} == {"Failed"}
    assert found[0][1].startswith(
        "Failed to set desired instance count to 500. Reason: The account-level service limit"
    )


def test_unavailable_capacity_is_unfulfilled_and_retried_after_a_minute(world: World) -> None:
    world.room = 2
    world.register(1, 9)
    put_busy(world, 5)
    work(world, 50)
    assert told(world)[0][0] == "InProgress"
    world.now_s += 4 * 3600
    for _ in range(3):
        world.reconcile()
    for _ in range(3):
        world.scaler.run_pass()
    capacity = read_capacity(world.store, read_key(IDENTITY))
    assert capacity is not None
    assert (capacity.desired, capacity.in_service) == (1, 1)
    ((code, message),) = told(world)
    assert code == "Unfulfilled"
    assert message.startswith("Failed to set desired instance count to 5: sagemaker could not fulfil the change")
    work(world, 50)
    assert len(told(world)) == 1
    work(world, 30)
    assert [code for code, _ in told(world)] == ["Unfulfilled", "InProgress"]


def test_an_unreadable_policy_does_not_affect_others(world: World) -> None:
    world.register(1, 4)
    world.put_policy("bad", **TRACKING)
    tracking = TRACKING["TargetTrackingScalingPolicyConfiguration"]
    other = {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"}
    config = {**tracking, "PredefinedMetricSpecification": other}
    alarms = world.put_policy(
        "good", PolicyType="TargetTrackingScaling", TargetTrackingScalingPolicyConfiguration=config
    )["Alarms"]
    raw = Kind("scaling-policy", dict, dict)
    (bad,) = (record for record in world.store.list(raw) if record.spec["PolicyName"] == "bad")
    broken = {**tracking, "TargetValue": -1.0}
    world.store.update(bad, spec={**bad.spec, "TargetTrackingScalingPolicyConfiguration": broken})
    names = {alarm["AlarmName"] for alarm in alarms}
    world.call("DeleteAlarms", "cloudwatch", AlarmNames=sorted(names))
    world.scaler.run_pass()
    assert names <= {record.name for record in world.store.list(ALARM)}
    assert isinstance(world.store.get(SCALING_POLICY, bad.name), Unreadable)
    (policy,) = world.call("DescribeScalingPolicies", ServiceNamespace="sagemaker")["ScalingPolicies"]
    assert policy["PolicyName"] == "good"


def test_less_than_an_unavailable_capacity_is_requested_at_once(world: World) -> None:
    world.register(1, 1000)
    put_busy(world, 500)
    work(world, 40)
    assert told(world)[0][0] == "Failed"
    put_busy(world, 3)
    work(world, 20)
    assert world.capacities == [1, 3]


def test_a_users_own_capacity_change_overrides_an_activity(world: World) -> None:
    world.register(1, 9)
    put_busy(world, 2)
    for _ in range(4):
        world.series.put(WORK, 5.0, now_s=world.now_s + 5)
        world.now_s += 10
        world.scaler.run_pass()
    assert told(world)[-1][0] == "InProgress"
    world.reconcile()
    write_capacity(world.store, AWS_SCOPE, read_key(IDENTITY), 4)
    world.scaler.run_pass()
    (activity,) = world.activities()
    assert activity["StatusCode"] == "Overridden"
    assert activity["StatusMessage"] == "The desired capacity was updated by a newer scaling event."


def test_scaling_in_works_after_a_failed_scaling_out(world: World) -> None:
    world.register(1, 1000)
    write_capacity(world.store, AWS_SCOPE, read_key(IDENTITY), 4)
    world.reconcile()
    put_busy(world, 500)
    work(world, 40)
    world.call("DeleteAlarms", "cloudwatch", AlarmNames=["busy"])
    shrink: dict[str, Any] = {"TreatMissingData": "breaching", "EvaluationPeriods": 1, "MetricName": "Other"}
    alarm(world, "idle", world.put_policy("idle", **steps(2))["PolicyARN"], **shrink)
    world.pass_time(30)
    assert world.capacities[-1] == 2
