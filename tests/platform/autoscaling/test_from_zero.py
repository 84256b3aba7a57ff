"""An asynchronous endpoint between zero and some, by its backlog; and what calls tell of a scalable target."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.platform.autoscaling.api.requests import read_key
from headrace.platform.autoscaling.loops.waker import Waker
from headrace.platform.autoscaling.records.capacity import write_capacity
from headrace.platform.cloudwatch.alarms.records import ALARM
from headrace.platform.cloudwatch.metrics.metric import Metric
from headrace.platform.state.routes import WakeTarget
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.support import AWS_SCOPE

from .support import IDENTITY, IDLE_S, World
from .test_autoscaler import TRACKING, alarm, steps

ENDPOINT = (("EndpointName", "e"),)
PER_INSTANCE = Metric(namespace="AWS/SageMaker", name="ApproximateBacklogSizePerInstance", dimensions=ENDPOINT)
WITHOUT_CAPACITY = Metric(namespace="AWS/SageMaker", name="HasBacklogWithoutCapacity", dimensions=ENDPOINT)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def sleep(world: World) -> None:
    write_capacity(world.store, AWS_SCOPE, read_key(IDENTITY), 0)
    world.reconcile()


def put_backlog_policies(world: World) -> None:
    """As SageMaker's guide on asynchronous endpoints has them."""
    dimensions = [{"Name": "EndpointName", "Value": "e"}]
    tracking = {
        "TargetValue": 5.0,
        "CustomizedMetricSpecification": {
            "MetricName": "ApproximateBacklogSizePerInstance",
            "Namespace": "AWS/SageMaker",
            "Dimensions": dimensions,
            "Statistic": "Average",
        },
        "ScaleInCooldown": 60,
        "ScaleOutCooldown": 60,
    }
    world.put_policy("backlog", PolicyType="TargetTrackingScaling", TargetTrackingScalingPolicyConfiguration=tracking)
    step = {
        "AdjustmentType": "ChangeInCapacity",
        "MetricAggregationType": "Average",
        "Cooldown": 300,
        "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
    }
    arn = world.put_policy("from-zero", PolicyType="StepScaling", StepScalingPolicyConfiguration=step)["PolicyARN"]
    alarm(
        world,
        "has-backlog",
        arn,
        MetricName="HasBacklogWithoutCapacity",
        Namespace="AWS/SageMaker",
        Dimensions=dimensions,
        Statistic="Average",
        Period=60,
        EvaluationPeriods=2,
        DatapointsToAlarm=2,
        Threshold=1.0,
        ComparisonOperator="GreaterThanOrEqualToThreshold",
        TreatMissingData="missing",
    )


def play_backlog(world: World, size: float, seconds: int) -> None:
    """Publish what the queue publishes every ten seconds, by how many serve."""
    for _ in range(seconds // 10):
        serving = world.capacities[-1] if world.capacities else 0
        world.series.put(WITHOUT_CAPACITY, float(bool(size) and not serving), now_s=world.now_s + 5)
        if serving:
            world.series.put(PER_INSTANCE, size / serving, now_s=world.now_s + 5)
        world.pass_time(10)


def test_a_backlog_scales_an_endpoint_from_zero_and_its_end_back(world: World) -> None:
    sleep(world)
    world.register(0, 4)
    put_backlog_policies(world)
    play_backlog(world, 0, 300)
    assert world.capacities == [0]
    play_backlog(world, 18, 600)
    assert world.capacities == [0, 1, 4], "one by the step policy; 18 at 5 for each by target tracking"
    causes = [activity["Cause"] for activity in world.activities()]
    assert causes[0] == "monitor alarm has-backlog in state ALARM triggered policy from-zero"
    assert causes[1].endswith("triggered policy backlog")
    assert "-AlarmHigh-" in causes[1]
    play_backlog(world, 0, 1500)
    assert world.capacities[-1] == 0


def test_without_a_backlog_nothing_leaves_zero(world: World) -> None:
    sleep(world)
    world.register(0, 4)
    put_backlog_policies(world)
    play_backlog(world, 0, 1200)
    assert world.capacities == [0]
    assert world.activities(with_not_scaled=True) == []


def test_missing_data_do_not_scale_in_a_running_target(world: World) -> None:
    world.register(1, 4)
    world.put_policy(**TRACKING)
    world.load = lambda serving: 12.0 / max(1, serving)
    world.pass_time(300)
    assert world.capacities[-1] == 3
    world.load = lambda _serving: None
    world.pass_time(1200)
    assert world.capacities[-1] == 3
    low = next(alarm for alarm in world.store.list(ALARM) if "-AlarmLow-" in alarm.name)
    assert low.status.state == "INSUFFICIENT_DATA"


def test_scaling_in_is_caught_up_once_its_suspension_ends(world: World) -> None:
    world.register(1, 4, SuspendedState={"DynamicScalingInSuspended": True})
    world.put_policy(**TRACKING)
    world.load = lambda serving: 12.0 / max(1, serving)
    world.pass_time(300)
    world.load = lambda _serving: 0.0
    world.pass_time(1200)
    assert world.capacities[-1] == 3
    world.call("RegisterScalableTarget", **IDENTITY, SuspendedState={"DynamicScalingInSuspended": False})
    world.pass_time(30)
    assert world.capacities[-1] == 1


def test_members_that_are_not_given_keep_their_values(world: World) -> None:
    world.register(1, 4, SuspendedState={"ScheduledScalingSuspended": True})
    world.call("RegisterScalableTarget", **IDENTITY, MaxCapacity=6)
    world.call("RegisterScalableTarget", **IDENTITY, SuspendedState={"DynamicScalingInSuspended": True})
    (target,) = world.call("DescribeScalableTargets", ServiceNamespace="sagemaker")["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 6)
    assert target["SuspendedState"] == {
        "DynamicScalingInSuspended": True,
        "DynamicScalingOutSuspended": False,
        "ScheduledScalingSuspended": True,
    }


def test_activities_are_described_newest_first_in_pages(world: World) -> None:
    world.register(1, 9)
    world.pass_time(20)
    for number in range(2, 7):
        world.call("RegisterScalableTarget", **IDENTITY, MinCapacity=number)
        world.pass_time(20)

    def page(**more: Any) -> dict[str, Any]:
        return world.call("DescribeScalingActivities", ServiceNamespace="sagemaker", MaxResults=2, **more)

    found, token = [], {}
    while True:
        answer = page(**token)
        assert len(answer["ScalingActivities"]) <= 2
        found += [activity["Description"] for activity in answer["ScalingActivities"]]
        if "NextToken" not in answer:
            break
        token = {"NextToken": answer["NextToken"]}
    assert found == [f"Setting desired instance count to {number}." for number in (6, 5, 4, 3, 2)]


def test_deregistering_removes_a_policys_alarms_but_not_a_users_own(world: World) -> None:
    world.register(0, 4)
    world.put_policy(**TRACKING)
    alarm(world, "mine", world.put_policy("idle", **steps(0))["PolicyARN"])
    world.call("DeregisterScalableTarget", **IDENTITY)
    (left,) = world.store.list(ALARM)
    assert (left.name, left.spec.alarm_actions) == ("mine", [])
    world.pass_time(600)
    assert world.capacities == [1]


SERVERLESS = {"MemorySizeInMB": 2048, "MaxConcurrency": 5}


def test_an_idle_serverless_variant_goes_to_zero_and_comes_back_with_a_request() -> None:
    world = World(serverless=SERVERLESS)
    world.pass_time(IDLE_S - 10)
    world.series.put(world.metric("Invocations"), 1.0, now_s=world.now_s)  # a short request, which no sample has seen
    world.pass_time(IDLE_S - 10)
    world.load = lambda _serving: 1.0
    world.pass_time(2 * IDLE_S)  # a long request, which has not ended
    assert set(world.capacities) == {1}
    world.load = lambda _serving: 0.0
    world.pass_time(IDLE_S + 30)
    assert world.capacities == [1, 0]
    assert world.scaler.run_pass() is None, "nothing to watch"
    waker = Waker(world.store, aws_scope=AWS_SCOPE, clock=lambda: world.now_s)
    waker.wake(WakeTarget(endpoint=world.endpoint, variant=world.variant))
    waker.close()
    world.pass_time(20)
    assert world.capacities == [1, 0, 1]
    assert world.scaler.run_pass() is not None
    world.close()


@pytest.mark.parametrize(
    ("serverless", "idle_s"),
    [(None, IDLE_S), ({**SERVERLESS, "ProvisionedConcurrency": 1}, IDLE_S), (SERVERLESS, 0.0)],
    ids=["instances", "provisioned", "never"],
)
def test_what_is_not_to_sleep_stays(serverless: dict[str, int] | None, idle_s: float) -> None:
    world = World(serverless=serverless)
    world.scaler.serverless_idle_s = idle_s
    world.pass_time(3 * IDLE_S)
    assert world.capacities == [1]
    if serverless:
        with pytest.raises(AwsError, match="is serverless and has no instances to scale"):
            world.register()
    assert world.scaler.run_pass() is None
    world.close()
