"""
In-flight requests are counted exactly; quarantines of workers, how long they are, and when they are forgotten.

Held requests: their order, their bounds, and the targets that are woken.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.gateway.replica_state import FIRST_S, LONGEST_S, Loads, Quarantine, WaitQueue, WaitQueueFull
from headrace.platform.state.routes import Replica, WakeTarget
from tests.waiting import WAIT_S


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20))))
def test_loads_count_the_leases_not_released_yet_in_any_order_of_releases(steps):
    loads, leases, expected = Loads(), [], Counter()
    for worker, index in steps:
        leases.append((worker, loads.acquire(worker)))
        expected[worker] += 1
        name, lease = leases[index % len(leases)]
        if lease is not None:
            lease.release()
            lease.release()
            expected[name] -= 1
            leases[index % len(leases)] = (name, None)
        assert dict(loads) == dict(+expected)
    for _, lease in leases:
        if lease is not None:
            lease.release()
    assert not loads


def test_the_requests_of_other_gateways_count_until_they_report_others():
    loads = Loads()
    lease = loads.acquire("a")
    loads.set_others({"a": 2, "b": 1})
    assert dict(loads) == {"a": 3, "b": 1}
    assert loads.own() == {"a": 1}, "what this gateway reports itself"
    lease.release()
    assert dict(loads) == {"a": 2, "b": 1}
    loads.set_others({})
    assert not loads


def test_a_report_of_the_other_gateways_may_release_requests():
    loads, reports = Loads(), []
    loads.on_release(lambda: reports.append(dict(loads)))
    loads.set_others({"a": 2})
    loads.set_others({})
    assert reports == [{"a": 2}, {}]


U, V = (Replica(worker=name, url="http://same") for name in "uv")


def test_a_quarantine_doubles_each_time_and_is_forgotten_when_it_is_lifted_or_the_replica_is_gone() -> None:
    ended: list[float] = []

    async def scene() -> list[float]:
        loop = asyncio.get_running_loop()
        quarantine = Quarantine(on_end=lambda: ended.append(loop.time()))
        waits = []
        for _ in range(7):
            quarantine.add(U)
            quarantine.add(U)
            assert U in quarantine
            end = quarantine._entries[U].end
            assert end is not None
            waits.append(end.when() - loop.time())
            end.cancel()
            quarantine._ended(quarantine._entries[U])
            assert U not in quarantine
        quarantine.add(U)
        quarantine.lift(U)
        assert U not in quarantine
        quarantine.add(U)
        quarantine.add(V)
        quarantine.retain({V})
        assert (U in quarantine, V in quarantine) == (False, True)
        quarantine.retain(())
        assert not quarantine
        return waits

    waits = asyncio.run(scene())
    assert waits == pytest.approx([FIRST_S, 2.0, 4.0, 8.0, 16.0, LONGEST_S, LONGEST_S], abs=0.1)
    assert len(ended) == 8


A = WakeTarget(endpoint="a")
B = WakeTarget(endpoint="b")
ASLEEP = WakeTarget(endpoint="a", variant="v")


class Scene:
    """A `WaitQueue` with made-up capacities, and the targets that it has woken."""

    def __init__(self, *, max_per_endpoint: int = 100, max_total: int = 100, remind_s: float = 10 * WAIT_S) -> None:
        self.capacities: dict[WakeTarget, int | None] = {}
        self.woken: list[WakeTarget] = []
        self.released: list[Any] = []
        self.wait_queue = WaitQueue(
            capacity=lambda target: self.capacities.get(target, 0),
            wake=self.woken.append,
            max_per_endpoint=max_per_endpoint,
            max_total=max_total,
            remind_s=remind_s,
        )

    def arrive(self, target: WakeTarget, name: Any) -> "asyncio.Task[None]":
        async def wait() -> None:
            await self.wait_queue.wait(target, ASLEEP if target == A else None)
            self.released.append(name)
            if (capacity := self.capacities.get(target)) is not None:
                self.capacities[target] = capacity - 1

        return asyncio.ensure_future(wait())

    def open(self, target: WakeTarget, number: int | None) -> None:
        self.capacities[target] = number
        self.wait_queue.release()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def play(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_requests_are_released_in_order_of_arrival_as_capacity_frees():
    async def run() -> None:
        scene = Scene()
        waiting = [scene.arrive(A, number) for number in range(5)]
        await settle()
        assert scene.wait_queue.num_held == 5
        assert scene.woken == [ASLEEP], "once for all of them"
        scene.open(A, 2)
        scene.wait_queue.release()
        await settle()
        assert scene.released == [0, 1]
        assert scene.wait_queue.has_waiters(A)
        scene.open(A, 9)
        await asyncio.gather(*waiting)
        assert scene.released == list(range(5))
        assert not scene.wait_queue.has_waiters(A)
        assert not scene.wait_queue.num_by_endpoint()

    play(run())


def test_a_request_that_arrives_while_those_ahead_are_released_does_not_wait_for_the_reminder():
    async def run() -> None:
        scene = Scene()
        waiting = [scene.arrive(B, 0)]
        await settle()
        waiting.append(scene.arrive(B, 1))  # its step is due before that of the released one
        scene.open(B, 2)
        await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
        assert scene.released == [0, 1]

    play(run())


def test_the_turn_of_a_request_that_is_cancelled_goes_to_the_next_one():
    async def run() -> None:
        scene = Scene()
        gone, waiting = scene.arrive(A, 0), scene.arrive(A, 1)
        await settle()
        scene.open(A, 1)
        gone.cancel()
        await asyncio.wait_for(waiting, WAIT_S)
        assert scene.released == [1]

    play(run())


def test_all_requests_are_released_when_their_target_is_gone():
    async def run() -> None:
        scene = Scene()
        waiting = [scene.arrive(A, number) for number in range(3)]
        await settle()
        scene.open(A, None)
        await asyncio.gather(*waiting)
        assert scene.wait_queue.num_held == 0

    play(run())


def test_one_endpoint_cannot_take_the_whole_queue():
    async def run() -> None:
        scene = Scene(max_per_endpoint=2, max_total=3)
        waiting = [scene.arrive(A, 0), scene.arrive(A, 1), scene.arrive(B, 2)]
        await settle()
        with pytest.raises(WaitQueueFull):
            await scene.wait_queue.wait(A, None)
        with pytest.raises(WaitQueueFull):
            await scene.wait_queue.wait(B, None)
        assert scene.wait_queue.num_by_endpoint() == {"a": 2, "b": 1}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert scene.wait_queue.num_held == 0

    play(run())


def test_the_wake_signal_is_repeated_while_a_request_is_held():
    async def run() -> None:
        scene = Scene(remind_s=0.001)
        waiting = scene.arrive(A, 0)
        while len(scene.woken) < 3:
            await asyncio.sleep(0.001)
        scene.open(A, 1)
        await waiting
        scene.woken.clear()
        await asyncio.sleep(0.01)
        assert not scene.woken

    play(run())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from([A, B])),
        st.tuples(st.just("capacity"), st.sampled_from([A, B]), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 20)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_request_is_released_once_and_in_order_of_arrival_after_any_steps(steps):
    async def run() -> None:
        scene = Scene()
        tasks: list[asyncio.Task[None]] = []
        for step in steps:
            if step[0] == "arrive":
                tasks.append(scene.arrive(step[1], (step[1].endpoint, len(tasks))))
            elif step[0] == "capacity":
                scene.open(step[1], step[2])
            elif step[0] == "leave" and step[1] < len(tasks):
                tasks[step[1]].cancel()
            else:
                await settle()
        await settle()
        scene.open(A, 100)
        scene.open(B, 100)
        done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT_S)
        assert sum(error is None for error in done) == len(scene.released)
        for endpoint in "ab":
            numbers = [number for name, number in scene.released if name == endpoint]
            assert numbers == sorted(numbers)
        assert scene.wait_queue.num_held == 0
        assert not scene.wait_queue.num_by_endpoint()
        assert not scene.wait_queue.has_waiters(A)

    play(run())
