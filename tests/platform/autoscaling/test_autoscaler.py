"""The autoscaler through hours of a clock that the test moves."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from headrace.platform.autoscaling.planning.policies import SCALING_POLICY
from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET
from headrace.platform.cloudwatch.alarms.records import ALARM
from headrace.platform.cloudwatch.metrics.metric import Metric
from headrace.platform.control.model.endpoint import ENDPOINT, EndpointSpec, EndpointStatus
from headrace.platform.control.model.workload import State
from headrace.platform.control.planning.plan import plan_deployable
from headrace.platform.state.records import Record
from tests.platform.control.planning.world import pass_context

from .support import IDENTITY, RESOURCE, START_S, World

TRACKING: dict[str, Any] = {
    "PolicyType": "TargetTrackingScaling",
    "TargetTrackingScalingPolicyConfiguration": {
        "TargetValue": 4.0,
        "PredefinedMetricSpecification": {
            "PredefinedMetricType": "SageMakerVariantConcurrentRequestsPerModelHighResolution"
        },
        "ScaleOutCooldown": 60,
        "ScaleInCooldown": 120,
    },
}


def steps(adjustment: int, kind: str = "ExactCapacity", **bounds: float) -> dict[str, Any]:
    """A policy of one step."""
    config = {
        "AdjustmentType": kind,
        "StepAdjustments": [{"ScalingAdjustment": adjustment, **(bounds or {"MetricIntervalUpperBound": 0.0})}],
        "Cooldown": 30,
    }
    return {"PolicyType": "StepScaling", "StepScalingPolicyConfiguration": config}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def alarm(world: World, name: str, arn: str, **members: Any) -> None:
    world.call(
        "PutMetricAlarm",
        "cloudwatch",
        **{
            "AlarmName": name,
            "AlarmActions": [arn],
            "MetricName": "Work",
            "Namespace": "mine",
            "Statistic": "Maximum",
            "Period": 10,
            "EvaluationPeriods": 3,
            "Threshold": 1.0,
            "ComparisonOperator": "LessThanThreshold",
            **members,
        },
    )


def test_load_scales_out_and_its_end_scales_in(world: World) -> None:
    world.register(1, 6)
    world.put_policy(**TRACKING)
    world.load = lambda serving: 16.0 / max(1, serving)
    world.pass_time(600)
    assert world.capacities[-1] == 4, "16 requests at a time, 4 for each"
    (out,) = world.activities()
    assert out["Description"] == "Setting desired instance count to 4."
    assert out["Cause"].startswith(f"monitor alarm TargetTracking-{RESOURCE}-AlarmHigh-")
    assert out["Cause"].endswith("in state ALARM triggered policy p")
    assert out["StatusCode"] == "Successful"
    assert out["StatusMessage"].endswith("Change successfully fulfilled by sagemaker.")
    assert out["StartTime"] - START_S < 100, "a minute of high load is enough"
    world.load = lambda _serving: 0.0
    world.pass_time(2400)
    assert world.capacities[-1] == 1
    assert all(1 <= capacity <= 6 for capacity in world.capacities)


def test_a_constant_load_is_met_by_one_scaling(world: World) -> None:
    world.register(1, 20)
    world.put_policy(**TRACKING)
    world.load = lambda serving: 26.0 / max(1, serving)
    world.pass_time(2000)
    assert world.capacities == [1, 7]


def test_a_capacity_at_its_maximum_says_so_once(world: World) -> None:
    world.register(1, 2)
    world.put_policy(**TRACKING)
    world.load = lambda _serving: 50.0
    world.pass_time(900)
    assert world.capacities[-1] == 2
    told = [activity for activity in world.activities(with_not_scaled=True) if "NotScaledReasons" in activity]
    assert [activity["NotScaledReasons"] for activity in told] == [[{"Code": "AlreadyAtMaxCapacity", "MaxCapacity": 2}]]
    assert told[0]["Description"] == "Attempting to scale due to alarm triggered"
    assert not any("NotScaledReasons" in activity for activity in world.activities())


def test_suspended_scaling_does_nothing_and_goes_on_when_it_is_resumed(world: World) -> None:
    world.register(1, 4, SuspendedState={"DynamicScalingOutSuspended": True})
    world.put_policy(**TRACKING)
    world.load = lambda _serving: 50.0
    world.pass_time(900)
    assert world.capacities == [1]
    world.call("RegisterScalableTarget", **IDENTITY, SuspendedState={"DynamicScalingOutSuspended": False})
    world.pass_time(60)
    assert world.capacities[-1] == 4


def test_a_users_idle_alarm_scales_to_zero_and_a_busy_one_back(world: World) -> None:
    world.register(0, 2)
    idle = world.put_policy("idle", **steps(0))["PolicyARN"]
    busy = world.put_policy("busy", **steps(1, MetricIntervalLowerBound=0.0))["PolicyARN"]
    alarm(world, "idle", idle, TreatMissingData="breaching")
    alarm(world, "busy", busy, ComparisonOperator="GreaterThanOrEqualToThreshold", EvaluationPeriods=1)
    world.pass_time(60)
    assert world.capacities[-1] == 0
    (went,) = world.activities()
    assert went["Cause"] == "monitor alarm idle in state ALARM triggered policy idle"
    world.series.put(Metric(namespace="mine", name="Work"), 3.0, now_s=world.now_s + 5)
    world.pass_time(20)
    assert world.capacities[-1] == 1
    assert world.activities()[-1]["Cause"] == "monitor alarm busy in state ALARM triggered policy busy"


def test_set_alarm_state_starts_the_policy(world: World) -> None:
    world.register(1, 5)
    arn = world.put_policy(**steps(2, "ChangeInCapacity", MetricIntervalLowerBound=0.0))["PolicyARN"]
    alarm(world, "mine", arn, ComparisonOperator="GreaterThanThreshold", TreatMissingData="notBreaching")
    world.pass_time(20)
    assert world.capacities == [1]
    world.call("SetAlarmState", "cloudwatch", AlarmName="mine", StateValue="ALARM", StateReason="a drill")
    world.scaler.run_pass()
    world.pass_time(10)
    assert world.capacities[-1] == 3
    world.pass_time(60)
    assert world.capacities[-1] == 3, "the next look found that there is no reason"


def test_alarms_whose_actions_are_disabled_start_nothing(world: World) -> None:
    world.register(0, 2)
    alarm(world, "idle", world.put_policy(**steps(0))["PolicyARN"], TreatMissingData="breaching", ActionsEnabled=False)
    world.pass_time(300)
    assert world.capacities == [1]


def test_metric_math_can_be_tracked(world: World) -> None:
    world.register(1, 9)
    stat = {"Metric": {"Namespace": "mine", "MetricName": "Work"}, "Stat": "Sum"}
    queries = [
        {"Id": "m1", "MetricStat": stat, "ReturnData": False},
        {"Id": "half", "Expression": "m1 / 2"},
    ]
    config = {"TargetValue": 10.0, "CustomizedMetricSpecification": {"Metrics": queries}, "DisableScaleIn": True}
    world.put_policy(PolicyType="TargetTrackingScaling", TargetTrackingScalingPolicyConfiguration=config)
    for _ in range(5):
        world.series.put(Metric(namespace="mine", name="Work"), 40.0, now_s=world.now_s + 30)
        world.pass_time(60)
    assert world.capacities[1] == 2


def test_new_bounds_take_effect_at_once(world: World) -> None:
    world.register(3, 5)
    world.pass_time(10)
    world.register(1, 2)
    world.pass_time(10)
    assert world.capacities == [3, 2]
    assert [activity["Cause"] for activity in world.activities()] == [
        "minimum capacity was set to 3",
        "maximum capacity was set to 2",
    ]


def test_a_scheduled_action_sets_bounds_and_capacity_at_its_time(world: World) -> None:
    world.register(1, 10)
    world.call(
        "PutScheduledAction",
        **IDENTITY,
        ScheduledActionName="morning",
        Schedule="rate(10 minutes)",
        ScalableTargetAction={"MinCapacity": 4},
    )
    world.pass_time(580)
    assert world.capacities == [1]
    world.pass_time(60)
    assert world.capacities[-1] == 4
    told = [(activity["Description"], activity["Cause"]) for activity in world.activities()]
    assert sorted(told, reverse=True) == [
        ("Setting min capacity to 4", "scheduled action name morning was triggered"),
        ("Setting desired instance count to 4.", "minimum capacity was set to 4"),
    ]
    (target,) = world.call("DescribeScalableTargets", ServiceNamespace="sagemaker")["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (4, 10)


def test_a_scheduled_action_missed_while_suspended_does_not_run_later(world: World) -> None:
    world.register(1, 10, SuspendedState={"ScheduledScalingSuspended": True})
    world.call(
        "PutScheduledAction",
        **IDENTITY,
        ScheduledActionName="once",
        Schedule="at(2023-11-14T22:20:00)",
        ScalableTargetAction={"MinCapacity": 4},
    )
    world.pass_time(1200)
    world.call("RegisterScalableTarget", **IDENTITY, SuspendedState={"ScheduledScalingSuspended": False})
    world.pass_time(600)
    assert world.capacities == [1]


def test_a_scheduled_action_in_the_past_never_runs(world: World) -> None:
    world.register(1, 10)
    world.pass_time(30)
    world.call(
        "PutScheduledAction",
        **IDENTITY,
        ScheduledActionName="late",
        Schedule=f"at({datetime.fromtimestamp(world.now_s - 5, UTC):%Y-%m-%dT%H:%M:%S})",
        ScalableTargetAction={"MinCapacity": 4},
    )
    world.pass_time(600)
    (action,) = world.call("DescribeScheduledActions", ServiceNamespace="sagemaker")["ScheduledActions"]
    assert action["ScheduledActionName"] == "late"
    assert world.capacities == [1]


def test_the_target_of_a_deleted_endpoint_is_removed_with_its_policies_and_alarms(world: World) -> None:
    world.register()
    world.put_policy(**TRACKING)
    world.pass_time(20)
    record = world.store.get(ENDPOINT, "e")
    assert record is not None
    world.store.remove(record)
    world.pass_time(20)
    for kind in (SCALABLE_TARGET, SCALING_POLICY, ALARM):
        assert world.store.list(kind) == []


def replace_variant(world: World) -> None:
    """Request a configuration with variant b instead of a."""
    record = world.store.get(ENDPOINT, "e")
    assert isinstance(record, Record)
    spec = record.spec
    variants = [{**spec.revision.config["ProductionVariants"][0], "VariantName": "b"}]
    config = {**spec.revision.config, "ProductionVariants": variants}
    revision = msgspec.structs.replace(spec.revision, number=2, config=config, capacities={})
    world.store.update(record, spec=EndpointSpec(generation=2, revision=revision))


def plan(world: World, *, ready: tuple[str, int] | None = None) -> State:
    """Run the reconciler's planning with one worker of a fleet, or none, then the autoscaler; return the state."""
    record = world.store.get(ENDPOINT, "e")
    assert isinstance(record, Record)
    deployment = plan_deployable(record, [world.worker(*ready)] if ready else [], pass_context(world.now_s)).deployment
    assert deployment is not None
    status = EndpointStatus(progress=deployment.progress, revisions=dict(deployment.revisions))
    world.store.update(record, status=status)
    world.now_s += 10
    world.scaler.run_pass()
    return deployment.progress.state


def test_the_policies_of_a_variant_stay_if_the_update_that_removes_it_is_rolled_back(world: World) -> None:
    world.register()
    world.put_policy(**TRACKING)
    replace_variant(world)
    assert plan(world) is State.UPDATING
    world.now_s += 100_000
    assert plan(world) is State.ROLLING_BACK
    assert plan(world, ready=("a", 1)) is State.IN_SERVICE
    for kind in (SCALABLE_TARGET, SCALING_POLICY):
        assert len(world.store.list(kind)) == 1
    world.load = lambda serving: 8.0
    world.pass_time(600)
    assert world.capacities[-1] > 1


def test_the_target_of_a_variant_is_removed_when_the_update_that_removes_it_is_complete(world: World) -> None:
    world.register()
    world.put_policy(**TRACKING)
    replace_variant(world)
    world.scaler.run_pass()
    assert plan(world) is State.UPDATING
    assert len(world.store.list(SCALABLE_TARGET)) == 1
    assert plan(world, ready=("b", 2)) is State.IN_SERVICE
    for kind in (SCALABLE_TARGET, SCALING_POLICY, ALARM):
        assert world.store.list(kind) == []


def test_policies_and_alarms_without_a_target_are_removed(world: World) -> None:
    world.register()
    world.put_policy(**TRACKING)
    record = world.store.get(SCALABLE_TARGET, f"{RESOURCE}|{IDENTITY['ScalableDimension']}")
    assert record is not None
    world.store.remove(record)  # a removal that was cut off, or its end
    world.pass_time(20)
    for kind in (SCALING_POLICY, ALARM):
        assert world.store.list(kind) == []


def test_a_deleted_alarm_of_a_policy_is_recreated(world: World) -> None:
    world.register()
    alarms = world.put_policy(**TRACKING)["Alarms"]
    names = {alarm["AlarmName"] for alarm in alarms}
    world.call("DeleteAlarms", "cloudwatch", AlarmNames=sorted(names))
    world.pass_time(10)
    assert {alarm.name for alarm in world.store.list(ALARM)} == names


def test_without_targets_and_alarms_it_waits_for_a_write(world: World) -> None:
    assert world.scaler.run_pass() is None
    world.register()
    pause_s = world.scaler.run_pass()
    assert pause_s is not None
    assert 0 < pause_s <= 10
