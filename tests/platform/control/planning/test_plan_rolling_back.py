"""Rollbacks of rolling updates: old workers return in batches, and the new ones serve until they are ready."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.control.model.workload import State
from tests.platform.control.planning.world import BROKEN, DUMB, Behaviour, World, config, served

ALARM = "The alarm errors is in ALARM."


def rolling(percent: int, back: int | None = None) -> dict[str, Any]:
    """A `DeploymentConfig`."""
    policy: dict[str, Any] = {"MaximumBatchSize": percent_of(percent), "WaitIntervalInSeconds": 20}
    if back is not None:
        policy["RollbackMaximumBatchSize"] = percent_of(back)
    return {"RollingUpdatePolicy": policy}


def percent_of(value: int) -> dict[str, Any]:
    """A `CapacitySize`."""
    return {"Type": "CAPACITY_PERCENT", "Value": value}


def half_way(deployment: dict[str, Any], *, count: int = 4, behaviour: Behaviour | None = None) -> World:
    """An update of which half of the workers have passed for good."""
    world = served(a=count)
    world.update(config("c2", a=count), behaviour or Behaviour(), deployment=deployment)
    while len(world.wanted(1)) > count // 2:
        world.step(0.5)
    world.settle(5)
    assert world.state is State.UPDATING
    return world


def serving(world: World) -> int:
    """Workers that take requests, and get some."""
    fleets = world.variants[0].fleets
    return sum(len(fleet.replicas) for fleet in fleets if fleet.share > 0)


def test_the_whole_old_fleet_is_brought_up_before_the_new_one_goes() -> None:
    world = half_way(rolling(25))
    world.alarm = ALARM
    world.step(0.5)
    assert world.state is State.ROLLING_BACK
    assert (len(world.wanted(1)), len(world.wanted(2))) == (4, 2)
    assert world.shares() == pytest.approx({1: 0.5, 2: 0.5})
    while world.state is State.ROLLING_BACK:
        assert serving(world) >= 4
        world.step(0.5)
    world.settle(5)
    assert world.state is State.IN_SERVICE
    assert world.shares() == {1: 1.0}
    assert (len(world.wanted(1)), len(world.wanted(2))) == (4, 0)
    assert world.reason == ALARM


def test_traffic_that_has_not_passed_for_good_goes_back_at_once() -> None:
    world = half_way(rolling(25))
    assert world.shares() == pytest.approx({1: 0.25, 2: 0.75})
    world.alarm = ALARM
    world.step(0.5)
    assert world.shares() == pytest.approx({1: 0.5, 2: 0.5})


@pytest.mark.parametrize(("back", "most"), [(None, 6), (25, 5), (50, 6), (100, 6)])
def test_old_workers_come_in_batches_of_the_size_asked_for(back: int | None, most: int) -> None:
    world = half_way(rolling(25, back))
    world.alarm = ALARM
    seen = 0
    for _ in range(200):
        world.step(0.5)
        seen = max(seen, len(world.wanted()))
        assert serving(world) >= 4
    assert seen == most
    assert world.state is State.IN_SERVICE
    assert (len(world.wanted(1)), len(world.wanted(2))) == (4, 0)


def test_where_both_have_no_room_the_new_ones_make_some() -> None:
    world = half_way(rolling(25, 25))
    world.alarm, world.no_room = ALARM, "No instance has room."
    world.step(0.5)
    world.step(0.5)
    assert (len(world.wanted(1)), len(world.wanted(2))) == (4, 0)
    assert world.shares() == {1: 1.0, 2: 0.0}
    world.no_room = ""
    world.settle(30)
    assert world.state is State.IN_SERVICE


def test_new_workers_that_crash_meanwhile_are_not_made_again() -> None:
    world = half_way(rolling(25))
    world.behaviours[1] = DUMB
    world.alarm = ALARM
    world.step(0.5)
    num_made = world.num_made
    for worker in world.wanted(2):
        world.crash(worker.name)
    world.settle(30)
    assert world.num_made == num_made
    assert world.shares() == {1: 1.0, 2: 0.0}


def test_old_workers_that_do_not_come_end_it_and_those_that_serve_stay() -> None:
    world = half_way(rolling(25))
    world.behaviours[1] = BROKEN
    world.alarm = ALARM
    world.settle(10_000, pause_s=5)
    assert world.state is State.UPDATE_ROLLBACK_FAILED
    assert serving(world) == 2


@given(
    count=st.integers(1, 9),
    percent=st.integers(5, 50),
    back=st.none() | st.integers(5, 100),
    alarm_after_s=st.integers(0, 400),
)
def test_nothing_is_lost_whenever_it_is_taken_back(
    count: int, percent: int, back: int | None, alarm_after_s: int
) -> None:
    world = served(a=count)
    world.update(config("c2", a=count), deployment=rolling(percent, back))
    world.settle(alarm_after_s, pause_s=1)
    is_over = world.state is not State.UPDATING
    world.alarm = ALARM
    in_service_s = 0
    for _ in range(600):
        world.step(1)
        assert serving(world) >= count
        in_service_s = in_service_s + 1 if world.state is State.IN_SERVICE else 0
        if in_service_s == 60:
            break
    assert world.state is State.IN_SERVICE
    assert len(world.wanted(2 if is_over else 1)) == count == len(world.wanted())
