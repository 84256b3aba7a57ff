"""Updates of an endpoint, pass by pass: the traffic shifts to the new revision, and back."""

import pytest

from headrace.platform.control.model.workload import State
from tests.platform.control.planning.world import BROKEN, Behaviour, config, served

CANARY = {
    "BlueGreenUpdatePolicy": {
        "TrafficRoutingConfiguration": {
            "Type": "CANARY",
            "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 10},
            "WaitIntervalInSeconds": 60,
        },
        "TerminationWaitInSeconds": 120,
        "MaximumExecutionTimeoutInSeconds": 3600,
    }
}
LINEAR = {
    "BlueGreenUpdatePolicy": {
        "TrafficRoutingConfiguration": {
            "Type": "LINEAR",
            "LinearStepSize": {"Type": "CAPACITY_PERCENT", "Value": 25},
            "WaitIntervalInSeconds": 10,
        }
    }
}
ROLLING = {
    "RollingUpdatePolicy": {
        "MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 50},
        "WaitIntervalInSeconds": 10,
    }
}


def test_an_update_all_at_once_moves_the_traffic_when_the_new_fleet_is_ready() -> None:
    world = served(a=2)
    world.update(config("c2", a=2))
    assert world.state is State.UPDATING
    world.step()
    assert world.shares() == {1: 1.0, 2: 0.0}
    world.settle(4)
    assert world.state is State.IN_SERVICE
    assert world.shares() == {2: 1.0}
    world.settle(10)
    assert len(world.wanted(2)) == 2
    assert all(worker.revision == 2 for worker in world.wanted())
    assert all(played.view.revision == 2 for played in world.workers.values())


def test_a_canary_gets_its_part_first_and_the_old_fleet_is_kept_for_a_while() -> None:
    world = served(a=2)
    world.update(config("c2", a=2), deployment=CANARY)
    world.settle(10)
    assert world.shares() == pytest.approx({1: 0.9, 2: 0.1})
    world.settle(60)
    assert world.shares() == {1: 0.0, 2: 1.0}
    world.settle(60)
    assert world.state is State.UPDATING
    assert len(world.wanted(1)) == 2
    world.settle(130)
    assert world.state is State.IN_SERVICE
    assert world.wanted(1) == []


def test_an_alarm_while_a_canary_bakes_takes_the_update_back() -> None:
    world = served(a=2)
    world.alarm = "The alarm errors is in ALARM."
    world.settle(10)
    assert world.state is State.IN_SERVICE
    world.alarm = ""
    world.update(config("c2", a=2), deployment=CANARY)
    world.settle(10)
    assert world.shares() == pytest.approx({1: 0.9, 2: 0.1})
    world.alarm = "The alarm errors is in ALARM."
    world.step(0.5)
    assert world.state is not State.UPDATING
    world.settle(60)
    assert world.state is State.IN_SERVICE
    assert world.shares() == {1: 1.0}
    assert world.record.status.progress is not None
    assert "errors" in world.record.status.progress.failure_reason


@pytest.mark.parametrize("jump_s", [3000.0, -500.0])
def test_a_jump_of_the_clock_neither_ends_nor_prolongs_the_stages_of_an_update(jump_s: float) -> None:
    world = served(a=2)
    world.update(config("c2", a=2), deployment=CANARY)
    world.settle(10)
    assert world.shares() == pytest.approx({1: 0.9, 2: 0.1})
    world.jump(jump_s)
    world.settle(50)
    assert world.shares() == pytest.approx({1: 0.9, 2: 0.1})
    world.settle(15)
    assert world.shares() == {1: 0.0, 2: 1.0}
    world.settle(70)  # the second step bakes as long; then the old fleet is kept for two minutes
    world.jump(jump_s)
    world.settle(110)
    assert len(world.wanted(1)) == 2
    world.settle(15)
    assert world.state is State.IN_SERVICE


def test_linear_traffic_goes_over_step_by_step() -> None:
    world = served()
    world.update(config("c2"), deployment=LINEAR)
    seen = []
    for _ in range(120):
        world.step(0.5)
        share = world.shares().get(2, 0.0)
        if not seen or share != seen[-1]:
            seen.append(share)
    assert seen == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])


def test_a_rolling_update_needs_no_more_than_one_batch_more() -> None:
    world = served(a=4)
    world.update(config("c2", a=4), deployment=ROLLING)
    most = 0
    for _ in range(200):
        world.step(0.5)
        most = max(most, len(world.wanted()))
    assert most == 6
    assert world.state is State.IN_SERVICE
    assert len(world.wanted(2)) == 4


def test_a_broken_update_is_rolled_back_and_the_old_fleet_never_stops_serving() -> None:
    world = served(a=2)
    world.update(config("c2", a=2), BROKEN)
    states = set()
    for _ in range(40):
        world.step(0.25)
        states.add(world.state)
        (old,) = [fleet for fleet in world.variants[0].fleets if fleet.generation == 1]
        assert (old.share, len(old.replicas)) == (1.0, 2)
    assert states >= {State.UPDATING, State.IN_SERVICE}
    assert world.stable == 1
    assert world.reason == "Crashed. The model is broken."


def test_a_canary_that_crashes_while_it_bakes_is_rolled_back() -> None:
    world = served(a=1)
    world.update(config("c2", a=1), Behaviour(crash_s=20.0), deployment=CANARY)
    world.settle(15)
    assert world.shares() == pytest.approx({1: 0.9, 2: 0.1})
    world.settle(60)
    assert world.stable == 1
    assert world.state is State.IN_SERVICE
    assert world.shares() == {1: 1.0}


def test_an_update_that_takes_too_long_is_rolled_back() -> None:
    world = served()
    policy = {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 3000},
            "MaximumExecutionTimeoutInSeconds": 600,
        }
    }
    world.update(config("c2"), deployment=policy)
    world.settle(590)
    assert world.shares() == {1: 0.0, 2: 1.0}
    world.settle(20)
    assert world.stable == 1
    assert world.shares() == {1: 1.0}
    assert "600 s" in world.reason


def test_variants_come_and_go_with_the_traffic() -> None:
    world = served(a=1, b=1)
    world.update(config("c2", b=1, c=1), deployment=CANARY)
    world.step(0.5)
    assert [variant.name for variant in world.variants] == ["a", "b"]
    world.settle(10)
    weights = {variant.name: variant.weight for variant in world.variants}
    assert weights == pytest.approx({"a": 0.45, "b": 0.5, "c": 0.05})
    world.settle(60)
    assert [variant.name for variant in world.variants] == ["b", "c"]


def test_a_variant_without_replicas_leaves_its_traffic_to_the_others_during_an_update() -> None:
    world = served(a=1, b=1)
    world.update(config("c2", b=1, c=1), deployment=CANARY)
    world.settle(10)
    (victim,) = [worker for worker in world.wanted(2) if worker.variant == "c"]
    world.crash(victim.name)
    world.step(0.1)
    weights = {variant.name: variant.weight for variant in world.variants}
    assert weights == pytest.approx({"a": 0.45, "b": 0.5, "c": 0.0})


def test_the_old_fleet_takes_over_again_while_it_is_kept() -> None:
    world = served(a=1)
    world.update(config("c2", b=2), Behaviour(crash_s=90.0), deployment=CANARY)
    world.settle(85)
    assert [variant.name for variant in world.variants] == ["b"]
    world.settle(60)
    assert world.stable == 1
    assert world.shares("a") == {1: 1.0}
