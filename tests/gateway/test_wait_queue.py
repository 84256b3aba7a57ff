"""Rooms of requests that wait: their order, their bounds, and who is woken."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gateway.wait_queue import WaitQueue, WaitQueueFull, WakeTarget
from tests.waiting import WAIT_S

A = WakeTarget(endpoint="a")
B = WakeTarget(endpoint="b")
SLEEPER = WakeTarget(endpoint="a", variant="v")


class Rooms:
    """A `WaitQueue`, replicas that a test makes up, and what was woken."""

    def __init__(self, *, max_of_endpoint: int = 100, max_in_all: int = 100, remind_s: float = 60.0) -> None:
        self.room_for: dict[WakeTarget, int | None] = {}
        self.woken: list[WakeTarget] = []
        self.left: list[Any] = []
        self.wait_queue = WaitQueue(
            capacity=lambda wanted: self.room_for.get(wanted, 0),
            wake=self.woken.append,
            max_of_endpoint=max_of_endpoint,
            max_in_all=max_in_all,
            remind_s=remind_s,
        )

    def arrive(self, wanted: WakeTarget, name: Any) -> "asyncio.Task[None]":
        async def wait() -> None:
            await self.wait_queue.wait(wanted, SLEEPER if wanted == A else None)
            self.left.append(name)
            if (room := self.room_for.get(wanted)) is not None:
                self.room_for[wanted] = room - 1

        return asyncio.ensure_future(wait())

    def open(self, wanted: WakeTarget, number: int | None) -> None:
        self.room_for[wanted] = number
        self.wait_queue.look()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def play(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_they_leave_in_their_order_as_there_is_room():
    async def scene() -> None:
        rooms = Rooms()
        waiting = [rooms.arrive(A, number) for number in range(5)]
        await settle()
        assert rooms.wait_queue.num_held == 5
        assert rooms.woken == [SLEEPER], "once for all of them"
        rooms.open(A, 2)
        rooms.wait_queue.look()
        await settle()
        assert rooms.left == [0, 1]
        assert rooms.wait_queue.is_queue_for(A)
        rooms.open(A, 9)
        await asyncio.gather(*waiting)
        assert rooms.left == list(range(5))
        assert not rooms.wait_queue.is_queue_for(A)
        assert not rooms.wait_queue.of_endpoints()

    play(scene())


def test_all_leave_when_there_is_nothing_to_wait_for():
    async def scene() -> None:
        rooms = Rooms()
        waiting = [rooms.arrive(A, number) for number in range(3)]
        await settle()
        rooms.open(A, None)
        await asyncio.gather(*waiting)
        assert rooms.wait_queue.num_held == 0

    play(scene())


def test_an_endpoint_may_not_fill_all_rooms():
    async def scene() -> None:
        rooms = Rooms(max_of_endpoint=2, max_in_all=3)
        waiting = [rooms.arrive(A, 0), rooms.arrive(A, 1), rooms.arrive(B, 2)]
        await settle()
        with pytest.raises(WaitQueueFull):
            await rooms.wait_queue.wait(A, None)
        with pytest.raises(WaitQueueFull):
            await rooms.wait_queue.wait(B, None)
        assert rooms.wait_queue.of_endpoints() == {"a": 2, "b": 1}
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert rooms.wait_queue.num_held == 0

    play(scene())


def test_whoever_wakes_is_reminded_while_somebody_waits():
    async def scene() -> None:
        rooms = Rooms(remind_s=0.001)
        waiting = rooms.arrive(A, 0)
        while len(rooms.woken) < 3:
            await asyncio.sleep(0.001)
        rooms.open(A, 1)
        await waiting
        rooms.woken.clear()
        await asyncio.sleep(0.01)
        assert not rooms.woken

    play(scene())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from([A, B])),
        st.tuples(st.just("room"), st.sampled_from([A, B]), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 20)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_everybody_leaves_once_and_nobody_overtakes(steps):
    async def scene() -> None:
        rooms = Rooms()
        tasks: list[asyncio.Task[None]] = []
        for step in steps:
            if step[0] == "arrive":
                tasks.append(rooms.arrive(step[1], (step[1].endpoint, len(tasks))))
            elif step[0] == "room":
                rooms.open(step[1], step[2])
            elif step[0] == "leave" and step[1] < len(tasks):
                tasks[step[1]].cancel()
            else:
                await settle()
        await settle()
        rooms.open(A, 100)
        rooms.open(B, 100)
        done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT_S)
        assert sum(one is None for one in done) == len(rooms.left)
        for endpoint in "ab":
            numbers = [number for name, number in rooms.left if name == endpoint]
            assert numbers == sorted(numbers)
        assert rooms.wait_queue.num_held == 0
        assert not rooms.wait_queue.of_endpoints()
        assert not rooms.wait_queue.is_queue_for(A)

    play(scene())
