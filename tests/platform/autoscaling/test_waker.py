"""A request that finds nothing wakes a first copy, once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.platform.autoscaling.api.requests import read_key
from headrace.platform.autoscaling.loops.waker import CAUSE, Waker
from headrace.platform.autoscaling.planning.targets import SCALABLE_TARGET
from headrace.platform.autoscaling.records.capacity import read_capacity, write_capacity
from headrace.platform.control.model.endpoint import ENDPOINT
from headrace.platform.state.routes import WakeTarget
from headrace.platform.state.store import Store
from tests.platform.control.support import AWS_SCOPE

from .support import IDENTITY, World
from .test_autoscaler import alarm, steps

TARGET = WakeTarget(endpoint="e", variant="a")


@pytest.fixture
def world() -> Iterator[World]:
    """One that sleeps."""
    made = World()
    write_capacity(made.store, AWS_SCOPE, read_key(IDENTITY), 0)
    made.reconcile()
    yield made
    made.close()


def wake(world: World, *targets: WakeTarget) -> None:
    waker = Waker(world.store, aws_scope=AWS_SCOPE, clock=lambda: world.now_s)
    for target in targets:
        waker.wake(target)
    waker.close()


def desired(world: World) -> int:
    capacity = read_capacity(world.store, read_key(IDENTITY))
    assert capacity is not None
    return capacity.desired


def test_many_requests_wake_one_copy(world: World) -> None:
    wake(world, *[TARGET] * 20)
    assert desired(world) == 1
    record = world.store.get(ENDPOINT, "e")
    assert record is not None
    assert record.spec.generation == 3, "created, put to sleep, woken: each asked for once"


def test_waking_a_target_requests_its_minimum_with_an_activity(world: World) -> None:
    world.register(2, 5)
    wake(world, TARGET)
    assert desired(world) == 2
    (told,) = world.activities()
    assert (told["Cause"], told["StatusCode"]) == (CAUSE, "InProgress")
    world.reconcile()
    world.pass_time(10)
    assert world.activities()[0]["StatusCode"] == "Successful"


def test_a_target_with_maximum_zero_is_not_woken(world: World) -> None:
    """A schedule that ends the day with MinCapacity=0,MaxCapacity=0, as in AWS's guide."""
    world.register(0, 0)
    wake(world, TARGET)
    assert desired(world) == 0
    assert world.activities() == []
    world.register(0, 1)
    wake(world, TARGET)
    assert desired(world) == 1


def test_an_idle_alarm_does_not_scale_a_woken_target_in_at_once(world: World) -> None:
    world.register(0, 5)
    alarm(world, "idle", world.put_policy("idle", **steps(0))["PolicyARN"], TreatMissingData="breaching")
    world.pass_time(60)
    wake(world, TARGET)
    world.reconcile()
    world.pass_time(50)
    assert desired(world) == 1
    world.pass_time(60)
    assert desired(world) == 0, "it is idle, after all"


def test_waking_a_running_deleted_or_unknown_target_does_nothing(world: World) -> None:
    wake(
        world,
        replace(TARGET, variant="other"),
        replace(TARGET, endpoint="other"),
        replace(TARGET, variant=None),
        replace(TARGET, component="none"),
    )
    assert desired(world) == 0
    wake(world, TARGET)
    world.reconcile()
    wake(world, TARGET)
    assert desired(world) == 1


def test_a_client_that_scales_a_sleeping_target_meanwhile_wins(world: World) -> None:
    """A waker that was stopped between its read and its write does not undo what was acknowledged since."""

    class Slow(Store):
        def get(self, kind: Any, name: str) -> Any:
            if kind is SCALABLE_TARGET:
                write_capacity(world.store, AWS_SCOPE, read_key(IDENTITY), 3)
                world.reconcile()
            return world.store.get(kind, name)

    slow = Slow(world.store._engine, shown="slow", listeners=world.store.listeners)
    waker = Waker(slow, aws_scope=AWS_SCOPE, clock=lambda: world.now_s)
    waker.wake(TARGET)
    waker.close()
    assert desired(world) == 3


def test_a_closed_waker_ignores_calls(world: World) -> None:
    waker = Waker(world.store, aws_scope=AWS_SCOPE)
    waker.close()
    waker.wake(TARGET)
    assert desired(world) == 0
