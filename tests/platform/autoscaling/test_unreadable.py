"""Records of alarms and autoscaling that cannot be read affect only themselves, and can be deleted."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from headrace.platform.autoscaling.planning.policies import SCALING_POLICY
from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET, SCHEDULED_ACTION
from headrace.platform.autoscaling.records.activities import SCALING_ACTIVITY
from headrace.platform.cloudwatch.alarms.records import ALARM
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.state.records import AnyKind, Kind, Unreadable

from .support import IDENTITY, World
from .test_autoscaler import TRACKING

NAMESPACE = {"ServiceNamespace": "sagemaker"}


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World()) as made:
        made.register(1, 4)
        made.put_policy("p", **TRACKING)
        action = {"MinCapacity": 1, "MaxCapacity": 3}
        put = {"ScheduledActionName": "night", "Schedule": "rate(1 day)", "ScalableTargetAction": action}
        made.call("PutScheduledAction", **IDENTITY, **put)
        yield made


def break_record(world: World, kind: AnyKind, **changes: Any) -> str:
    """Change the stored spec of the one record of a kind; return its name."""
    raw = Kind(kind.name, dict, dict, migrations=kind.migrations, oldest=kind.oldest)
    record = world.store.list(raw)[0]
    world.store.update(record, spec={**record.spec, **changes})
    assert isinstance(world.store.get(kind, record.name), Unreadable)
    return record.name


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ALARM, {"ComparisonOperator": "Sideways"}),
        (SCALABLE_TARGET, {"MinCapacity": "many"}),
        (SCALABLE_TARGET, {"ResourceId": "endpoint/e"}),
        (SCALING_POLICY, {"TargetTrackingScalingPolicyConfiguration": {"TargetValue": -1.0}}),
        (SCALING_POLICY, {"alarms": None}),
        (SCHEDULED_ACTION, {"Schedule": "daily"}),
        (SCHEDULED_ACTION, {"Unknown": 1}),
    ],
)
def test_a_pass_and_every_description_work_with_an_unreadable_record(
    world: World, kind: AnyKind, changes: dict[str, Any]
) -> None:
    break_record(world, kind, **changes)
    alarms = {alarm.name for alarm in world.store.list(ALARM)}
    world.pass_time(30)
    assert {alarm.name for alarm in world.store.list(ALARM)} == alarms
    for operation in (
        "DescribeScalableTargets",
        "DescribeScalingPolicies",
        "DescribeScheduledActions",
        "DescribeScalingActivities",
    ):
        world.call(operation, **NAMESPACE)
    described = world.call("DescribeAlarms", "cloudwatch")["MetricAlarms"]
    assert {alarm["AlarmName"] for alarm in described} == alarms


def test_an_unreadable_target_is_deregistered_with_what_depends_on_it(world: World) -> None:
    break_record(world, SCALABLE_TARGET, MinCapacity="many")
    world.call("DeregisterScalableTarget", **IDENTITY)
    assert [world.store.list(kind) for kind in (SCALABLE_TARGET, SCALING_POLICY, SCHEDULED_ACTION, ALARM)] == [[]] * 4


def test_the_target_of_an_unreadable_endpoint_stays(world: World) -> None:
    break_record(world, ENDPOINT, revision="of a newer version")
    world.pass_time(30)
    assert [len(world.store.list(kind)) for kind in (SCALABLE_TARGET, SCALING_POLICY, SCHEDULED_ACTION)] == [1] * 3


def test_an_unreadable_policy_and_action_are_deleted_by_name(world: World) -> None:
    break_record(world, SCALING_POLICY, PolicyType="Predictive")
    break_record(world, SCHEDULED_ACTION, put_s="yesterday")
    world.call("DeleteScalingPolicy", **IDENTITY, PolicyName="p")
    world.call("DeleteScheduledAction", **IDENTITY, ScheduledActionName="night")
    world.pass_time(20)
    assert [world.store.list(kind) for kind in (SCALING_POLICY, SCHEDULED_ACTION, ALARM)] == [[]] * 3


def test_an_unreadable_alarm_is_described_with_the_reason_and_its_policy_replaces_it(world: World) -> None:
    name = break_record(world, ALARM, EvaluationPeriods=0)
    (described,) = world.call("DescribeAlarms", "cloudwatch", AlarmNames=[name])["MetricAlarms"]
    assert "cannot be read" in described["StateReason"]
    world.pass_time(20)
    assert not isinstance(world.store.get(ALARM, name), Unreadable)


def test_activities_that_cannot_be_read_are_left_out(world: World) -> None:
    world.load = lambda _serving: 12.0
    world.pass_time(200)
    activities = world.activities()
    assert activities
    break_record(world, SCALING_ACTIVITY, StatusCode="Unheard")
    assert len(world.activities()) == len(activities) - 1
